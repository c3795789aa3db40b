"""Two unlike devices together.

They are two cards, or two parts of one with different memory limits (see parts.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from scripts.benches.gpu_steps.place import Figure, Place, StepFailed
from tests.support.as_worker import show
from tests.support.gpu.parts import logical

_AFTERWARDS_S = 12.0
_BALANCE = "--rounds 4 --round-duration 1.5 --windows 2 --duration 3 --global-batch 256"
_REHEARSED = (
    "--rounds 1 --round-duration 0.2 --windows 1 --duration 0.3 --global-batch 24"
)


def figures(place: Place) -> Iterator[Figure]:
    """The findings; the all-reduce comes last, as it loads TensorFlow in this process."""
    balance = (
        "balance",
        *place.options(2),
        "--model",
        place.model,
        *(_REHEARSED if place.rehearsed else _BALANCE).split(),
    )
    # `balance` ends with what it has, to leave time for the rest.
    limit_s = max(20.0, place.left_s - _AFTERWARDS_S)
    limit = () if place.rehearsed else ("--time-limit", f"{limit_s:.0f}")
    done = place.program(*balance, *limit, codes=(0, 6, 8))
    yield balanced(
        "`balance` ends with" if done.code == 0 else "`balance` came to", done.out
    )
    yield _energy(done.out)
    yield _all_reduce(place)


def balanced(how: str, plan: dict[str, Any] | None) -> Figure:
    """What `balance` found. Raises StepFailed if it found nothing."""
    if plan is None or not plan.get("balance"):
        raise StepFailed("the time of `balance` was over before it had a split")
    run = plan["balance"]["run"]
    rounds = plan["balance"]["rounds"]
    told = f"{how} {'/'.join(map(str, plan['batches']))} after {len(rounds)} rounds"
    if run is not None:
        told += f": {run['throughput']['median']:.0f} samples/s, imbalance {run['imbalance']:.3f}"
        if run["speedup_over_even"] is not None:
            low, high = run["speedup_ci95"] or (math.nan, math.nan)
            told += f", {run['speedup_over_even']:.3f} × even ({low:.3f} to {high:.3f})"
    return Figure(how, plan, told)


def _energy(plan: dict[str, Any]) -> Figure:
    """NVML's energy over the mean of its power readings times the seconds.

    It is 1 where NVML has no counter of energy.
    """
    run = plan["balance"]["run"]
    seen = (
        [replica["telemetry"] for replica in run["replicas"] if replica["telemetry"]]
        if run
        else []
    )
    known = [one for one in seen if one["energy_j"] and one["power_w"]]
    parts = [one["energy_j"] / (one["power_w"] * one["duration_s"]) for one in known]
    told = (
        "NVML's energy over integrated power: "
        f"{', '.join(f'{part:.3f}' for part in parts) or 'not told'}"
    )
    return Figure("energy", {"ratios": parts, "telemetry": seen}, told)


def _all_reduce(place: Place) -> Figure:
    """The all-reduce that TensorFlow itself chooses for these devices."""
    show(place.devices(2))
    from gpubalance.engine.replicas import build_strategy
    from gpubalance.engine.runtime import use_devices

    names = (
        use_devices(place.devices(2)) if place.cards else logical("CPU", (None, None))
    )
    extended = build_strategy(names, "auto").extended
    found = (
        f"{type(extended._cross_device_ops).__name__}, "
        f"{extended._communication_options.implementation.value}"
    )
    return Figure("all_reduce", found, f"`--all-reduce auto` is {found}")
