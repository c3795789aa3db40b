"""The measurement that the windows of a split make."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.jobs.measure import figures
from gpubalance.jobs.measure.figures import Windows
from gpubalance.jobs.measure.window import Sensors
from gpubalance.planning.parts import StepParts, split_step
from gpubalance.results.run import Measurement, Replica
from gpubalance.settings.batch_split import BatchSplit


def measurement(
    split: BatchSplit,
    windows: Windows,
    sensors: Sensors,
    used_places: Sequence[int] = (),
    origin_s: float | None = None,
) -> Measurement:
    """The record of windows, which have timings and stamped steps.

    The `sensors` read the GPUs meanwhile. `used_places` are the places of the replicas' devices in
    the result; by default it has no others. Times count from `origin_s` on the monotonic clock, by
    default from the first timing.
    """
    if origin_s is None:
        origin_s = figures.began_s(windows)
    step_time = figures.step_time(windows, origin_s)
    slow_s = figures.slow_s(windows)
    parts = _parts(windows, step_time.median - slow_s)
    peaks = figures.peaks(windows)
    telemetry = sensors.telemetry(origin_s) or (None,) * len(split.batches)
    replicas = []
    for number, place in enumerate(used_places or range(len(split.batches))):
        batch = split.batches[number]
        replica = Replica(
            device=place,
            batch=batch,
            micro_batch=split.micro_batches[number],
            throughput=batch / step_time.median,
            compute_s=parts.compute_s[number],
            update_s=parts.update_s[number],
            wait_s=parts.wait_s[number],
            utilisation=min(1.0, parts.compute_s[number] / step_time.median),
            memory_peak_bytes=peaks[number],
            telemetry=telemetry[number],
        )
        replicas.append(replica)
    return Measurement(
        batches=split.batches,
        micro_batches=split.micro_batches,
        global_batch=split.global_batch,
        step_time_s=step_time,
        step_spread=figures.step_spread(windows),
        throughput=figures.throughput_of(split.global_batch, step_time.samples),
        replicas=tuple(replicas),
        sync_s=parts.sync_s,
        input_wait_s=parts.input_wait_s,
        slow_s=slow_s,
        slow_steps=figures.slow_steps_in(windows) if slow_s else None,
        excess_s=parts.excess_s,
        imbalance=parts.imbalance,
    )


def _parts(windows: Windows, step_s: float) -> StepParts:
    """Where a step of `step_s` seconds goes, by the stamped steps."""
    steps = figures.stamped_in(windows)
    computes = [step.compute_s or () for step in steps]
    updates = [step.update_s or () for step in steps]
    average = figures.averaging(windows)
    input_wait_s = average(figures.input_waits_s(windows)) + figures.rare_waits_s(
        windows
    )
    return split_step(step_s, computes, updates, input_wait_s, average)
