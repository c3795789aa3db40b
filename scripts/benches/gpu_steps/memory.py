"""A whole `probe` of one device until its memory ends.

Also the limit in a process that has been out of memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from gpubalance.settings.batch_split import BatchSplit
from scripts.benches.gpu_steps.place import Figure, Place, StepFailed
from tests.cli.program import QUICK_PAIR

# The program's own time limit ends this much earlier, so that it saves what it has.
_AFTERWARDS_S = 25.0
# A step of the largest batches takes seconds, and where the allocator's own pieces decide what fits,
# only trying tells: so not every batch is looked at.
_MULTIPLE = ("--batch-multiple", "64")


def figures(place: Place) -> Iterator[Figure]:
    """The findings of a probe. Raises StepFailed if nothing was measured."""
    duration = "0.05" if place.rehearsed else "0.5"
    probe_it = (
        "probe",
        *place.options(1),
        "--model",
        place.model,
        "--duration",
        duration,
    )
    probe_it += _MULTIPLE
    limit_s = max(5.0, place.left_s - _AFTERWARDS_S)
    done = place.program(*probe_it, "--time-limit", f"{limit_s:.0f}", codes=(0, 6, 8))
    if done.out is None:
        raise StepFailed("the probe ended without a point")
    probe = done.out["probes"][0]
    told = f"{len(probe['curve'])} batch sizes in {probe['elapsed_s']:.0f} s"
    yield Figure("probe", done.out, told)
    best = probe["solo_best"]
    limit = probe["batch_limit"]
    if best:
        last = max(probe["curve"], key=lambda point: point["batch"])
        part = last["throughput"]["median"] / best["throughput"]
        told = f"best {best['throughput']:.0f} samples/s at {best['batch']}"
        yield Figure(
            "best", best, f"{told}; at the largest, {last['batch']}: {part:.3f} of it"
        )
    seen = [point["telemetry"] for point in probe["curve"] if point["telemetry"]]
    if seen:
        yield Figure("nvml", seen, f"NVML at {len(seen)} sizes: {_telemetry(seen)}")
    if not limit:
        raise StepFailed("the probe's time was over before memory ended")
    seconds = [
        f"{trial['seconds']:.1f}"
        for trial in limit["trials"]
        if trial["outcome"] == "oom"
    ]
    told = (
        f"{limit['fits']} fits, {limit['fails']} fails: {len(limit['trials'])} trials, "
    )
    told += f"{probe['children']} workers, out of memory after {', '.join(seconds) or 'no'} s"
    yield Figure("limit", limit, told)
    if limit["fits"] and limit["fails"]:
        yield from _used(place, limit["fits"], limit["fails"])


def _used(place: Place, fits: int, fails: int) -> Iterator[Figure]:
    """The same batches in one process, the largest first.

    So each has been out of memory before the next.
    """
    import tensorflow as tf

    session = place.session(QUICK_PAIR)
    for batch in (2 * fails, fails, fits):
        began = time.monotonic()
        outcome = "fits"
        try:
            list(
                session.measure(
                    BatchSplit((batch,)),
                    seconds=0,
                    at_least=1,
                    steps_per_timing=1,
                    stamped=False,
                )
            )
        except tf.errors.ResourceExhaustedError:
            outcome = "out of memory"
        except tf.errors.OpError as error:  # as what cuDNN then says
            outcome = f"{type(error).__name__}: {error.message.splitlines()[0]}"
        seconds = time.monotonic() - began
        value = {"batch": batch, "outcome": outcome, "seconds": seconds}
        yield Figure(
            "used",
            value,
            f"{batch} in the used process: {outcome} after {seconds:.1f} s",
        )


def _telemetry(seen: list[dict[str, Any]]) -> str:
    power = [one["power_w"] for one in seen if one["power_w"] is not None]
    clock = [one["sm_clock_mhz"] for one in seen if one["sm_clock_mhz"] is not None]
    reasons = sorted(
        {reason for one in seen for reason in one["throttle_reasons"] or ()}
    )
    told = [f"up to {max(power):.0f} W"] if power else []
    told += [f"{min(clock)} to {max(clock)} MHz"] if clock else []
    return ", ".join([*told, f"throttled: {', '.join(reasons) or 'no'}"])
