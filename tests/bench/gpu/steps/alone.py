"""A whole `probe` of one device, until its memory ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.bench.gpu.place import Place, StepFailed
from tests.bench.gpu.steps import Figure

_SAVES_S = 15.0  # the program's own time limit ends this much earlier, so that it saves what it has
_TF32 = ("--precision", "tf32", "--batch-multiple", "64")  # on a large card a step of the largest batches takes seconds


def figures(place: Place) -> Iterator[Figure]:
    """The findings of a probe. Raises StepFailed if nothing was measured."""
    of_card = ("--duration", "0.05") if place.rehearsed else _TF32
    probe_it = ("probe", *place.options(1), "--model", place.model, *of_card)
    expected_s = place.program(*probe_it, "--dry-run").out["seconds"]
    limit_s = max(5.0, place.left_s - _SAVES_S)
    done = place.program(*probe_it, "--time-limit", f"{limit_s:.0f}", codes=(0, 6, 8))
    if done.out is None:
        raise StepFailed("the probe ended without a point")
    probe = done.out["probes"][0]
    told = f"{len(probe['curve'])} batch sizes in {probe['elapsed_s']:.0f} s of {expected_s:.0f} expected"
    yield Figure("probe", done.out, told)
    best, limit = probe["solo_best"], probe["batch_limit"]
    if best:
        last = max(probe["curve"], key=lambda point: point["batch"])
        part = last["throughput"]["median"] / best["throughput"]
        told = f"best {best['throughput']:.0f} samples/s at {best['batch']}"
        yield Figure("best", best, f"{told}; at the largest, {last['batch']}: {part:.3f} of it")
    if limit:
        seconds = [f"{trial['seconds']:.1f}" for trial in limit["trials"] if trial["outcome"] == "oom"]
        told = f"{limit['fits']} fits, {limit['fails']} fails: {len(limit['trials'])} trials, "
        told += f"{probe['children']} workers, out of memory after {', '.join(seconds) or 'no'} s"
        yield Figure("limit", limit, told)
    seen = [point["telemetry"] for point in probe["curve"] if point["telemetry"]]
    if seen:
        yield Figure("nvml", seen, f"NVML at {len(seen)} sizes: {_telemetry(seen)}")


def _telemetry(seen: list[dict[str, Any]]) -> str:
    power = [one["power_w"] for one in seen if one["power_w"] is not None]
    clock = [one["sm_clock_mhz"] for one in seen if one["sm_clock_mhz"] is not None]
    reasons = sorted({reason for one in seen for reason in one["throttle_reasons"] or ()})
    told = [f"up to {max(power):.0f} W"] if power else []
    told += [f"{min(clock)} to {max(clock)} MHz"] if clock else []
    return ", ".join([*told, f"throttled: {', '.join(reasons) or 'no'}"])
