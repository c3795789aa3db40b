"""Measurements of a pair of GPUs, as in events."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpubalance.results.common import StepTime
from gpubalance.results.run import Measurement
from gpubalance.results.timing import Telemetry
from gpubalance.settings.device import Device
from tests.jobs.probes import measurement_of, step_times
from tests.support.altered import altered

CARD: Any = {"memory_bytes": 1 << 30, "simulated": False}
PAIR = tuple(Device(index=i, uuid=f"GPU-{i}", name=f"Card {i}", **CARD) for i in (0, 1))


step_time = partial(step_times, steps=4)


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
