"""Measurements of a pair of GPUs, as in events."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from gpubalance.results.common import StepTime
from gpubalance.results.run import Measurement
from gpubalance.results.timing import Telemetry
from gpubalance.settings.device import Device
from tests.jobs.probes import measurement_of
from tests.support.altered import altered

CARD: Any = {"memory_bytes": 1 << 30, "simulated": False}
PAIR = tuple(Device(index=i, uuid=f"GPU-{i}", name=f"Card {i}", **CARD) for i in (0, 1))


def step_time(*samples: float, at_s: tuple[float, ...] = ()) -> StepTime:
    """Step times whose timings, of 4 steps, end one after another, or when it says."""
    at_s = at_s or tuple(accumulate(4 * sample for sample in samples))
    return StepTime(
        median=samples[0],
        mad=0.0,
        ci95=None,
        steps_per_sample=4,
        samples=samples,
        at_s=at_s,
    )


def measurement(
    batches: tuple[int, ...],
    times: StepTime,
    telemetry: Telemetry | None = None,
    micro_batches: tuple[int, ...] | None = None,
    memory: int | None = None,
) -> Measurement:
    """A measurement in which the first GPU computes for 0.1 s and the second for 0.2 s.

    The first has the telemetry.
    """
    made = measurement_of(batches, (0.1, 0.2), sync_s=0.01)
    replicas = []
    for replica in made.replicas:
        own: Any = {"throughput": replica.batch / times.median}
        own |= {"telemetry": None if replica.device else telemetry}
        replicas.append(altered(replica, memory_peak_bytes=memory, **own))
    sizes = micro_batches or batches
    changes = {"step_time_s": times, "replicas": tuple(replicas)}
    return altered(made, micro_batches=sizes, **changes)
