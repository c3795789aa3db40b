"""Measurements of a pair of GPUs, as their events tell them."""

from __future__ import annotations

from gpubalance.results.common import StepTime, Throughput
from gpubalance.results.run import Measurement, Replica
from gpubalance.results.telemetry import Telemetry
from gpubalance.settings.device import Device

PAIR = tuple(
    Device(index=i, uuid=f"GPU-{i}", name=f"Card {i}", memory_bytes=1 << 30, simulated=False) for i in range(2)
)


def step_time(*samples: float, steps: int = 4, at_s: tuple[float, ...] | None = None) -> StepTime:
    return StepTime(median=samples[0], mad=0.0, ci95=None, steps_per_sample=steps, samples=samples, at_s=at_s)


def measurement(
    batches: tuple[int, ...],
    times: StepTime,
    telemetry: Telemetry | None = None,
    micro_batches: tuple[int, ...] | None = None,
    memory: int | None = None,
) -> Measurement:
    rate = sum(batches) / times.median
    return Measurement(
        batches=batches,
        micro_batches=micro_batches or batches,
        global_batch=sum(batches),
        step_time_s=times,
        throughput=Throughput(median=rate, ci95=None),
        replicas=tuple(
            Replica(
                device=i,
                batch=batch,
                micro_batch=batch,
                throughput=batch / times.median,
                compute_s=0.1 * (i + 1),
                wait_s=0.1 * (1 - i),
                utilisation=0.5,
                memory_peak_bytes=memory,
                telemetry=telemetry if i == 0 else None,
            )
            for i, batch in enumerate(batches)
        ),
        sync_s=0.01,
        input_wait_s=0.0,
        excess_s=0.0,
        imbalance=1.25,
    )
