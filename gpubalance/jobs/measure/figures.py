"""What the windows of a workload say: step time, the parts of a step, memory and devices.

Stamped steps are apart from other timings, as stamping costs a little. The engine takes the stamps,
in engine/step/points.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gpubalance.jobs.measure.window import Peaks, Sensors, Window, largest
from gpubalance.numbers.stats import half_width, interval95, mad, mean, median, part95
from gpubalance.planning.parts import StepParts, slow_steps, slow_time, split_step
from gpubalance.results.common import StepTime, Throughput
from gpubalance.results.run import Measurement, Replica, SlowSteps, StepSpread
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device

Windows = Sequence[Window]
# Each GPU that was throttled for a reason that passes, and why.
Throttled = Sequence[tuple[Device, tuple[str, ...]]]
# Times the median's interval: the mean is hardly ever above that by chance
_CLEARLY_OVER = 1.01


def timings_in(windows: Windows) -> list[Timing]:
    """Those without stamps, in order of time."""
    return [timing for window in windows for timing in window.timings]


def stamped_in(windows: Windows) -> list[Timing]:
    """The stamped steps, in order of time."""
    return [step for window in windows for step in window.stamped]


def all_in(windows: Windows) -> list[Timing]:
    """All timings, with stamps or without."""
    return timings_in(windows) + stamped_in(windows)


def step_times_s(windows: Windows) -> list[float]:
    """Seconds of a step, the mean of each timing without stamps."""
    return [timing.seconds / timing.steps for timing in timings_in(windows)]


def median_step_s(windows: Windows) -> float:
    """The median of `step_times_s`."""
    return median(step_times_s(windows))


def began_s(windows: Windows) -> float:
    """When the first timing began, on the monotonic clock."""
    firsts = timings_in(windows)[:1] + stamped_in(windows)[:1]
    return min(timing.ended_s - timing.seconds for timing in firsts)


def step_time(windows: Windows, origin_s: float) -> StepTime:
    """The step time in seconds; `at_s` has each timing's end, from `origin_s` on that clock."""
    times = step_times_s(windows)
    timings = timings_in(windows)
    return StepTime(
        median=median(times),
        mad=mad(times),
        ci95=interval95(times),
        steps_per_sample=max(timing.steps for timing in timings),
        samples=tuple(times),
        at_s=tuple(round(timing.ended_s - origin_s, 3) for timing in timings),
    )


def throughput_of(samples: int, times_s: Sequence[float]) -> Throughput:
    """Samples per second: so many samples over the median of the times, which are in order."""
    known = interval95(times_s)
    ci95 = (samples / known[1], samples / known[0]) if known else None
    return Throughput(median=samples / median(times_s), ci95=ci95)


def precision(windows: Windows) -> float:
    """Half the 95 % interval of the step time as a part of it; infinite if unknown."""
    known = half_width(step_times_s(windows))
    return math.inf if known is None else known


def mean_over_median(windows: Windows) -> float:
    """The part by which the mean timing is longer than the median, 0 if that may be chance."""
    times = step_times_s(windows)
    interval = interval95(times)
    if (
        vary_in_shape(windows)
        or interval is None
        or mean(times) <= _CLEARLY_OVER * interval[1]
    ):
        return 0.0
    return mean(times) / median(times) - 1


def input_wait_s(windows: Windows) -> float:
    """How long a step waits for data: the host's wait in the timings without stamps."""
    return median(
        [timing.input_wait_s / timing.steps for timing in timings_in(windows)]
    )


def step_count(windows: Windows) -> int:
    """Measured steps, stamped ones included."""
    return sum(timing.steps for timing in all_in(windows))


def vary_in_shape(windows: Windows) -> bool:
    """Whether batches, and so steps, differ in shape."""
    return any(timing.shapes_differ for timing in all_in(windows))


def have_new_shapes(windows: Windows) -> bool:
    """Whether batches of new shapes came without end, which may be compiled or tuned for."""
    return any(timing.new_shapes for timing in all_in(windows))


def loss_is_finite(windows: Windows) -> bool:
    """Whether no loss was infinite or NaN."""
    return all(timing.loss_is_finite for timing in all_in(windows))


def late_part(windows: Windows) -> float:
    """The part of steps whose real compute took longer than the profile's time."""
    if not windows:
        return 0.0
    return mean([window.late_part for window in windows])


def peaks(windows: Windows) -> Peaks:
    """The largest peak of each device."""
    return largest(*(window.memory_peak_bytes for window in windows))


def throttled(windows: Windows) -> list[tuple[str, ...]]:
    """NVML's reasons that slowed each device down in any window and may pass."""
    reasons_by_device = []
    for by_window in zip(*(window.throttled for window in windows), strict=True):
        reasons: dict[str, None] = {}  # in order, each once
        for of_window in by_window:
            reasons |= dict.fromkeys(of_window)
        reasons_by_device.append(tuple(reasons))
    return reasons_by_device


def throttled_gpus(devices: Sequence[Device], windows: Windows) -> Throttled:
    """Each GPU that was throttled for a reason that passes, with NVML's reasons."""
    by_device = zip(devices, throttled(windows), strict=False)
    return [(device, reasons) for device, reasons in by_device if reasons]


def averaging(windows: Windows) -> Callable[[Sequence[float]], float]:
    """What makes one number of single steps: the median, or the mean if batches differ in shape.

    A timing is the mean of several such steps.
    """
    return mean if vary_in_shape(windows) else median


def input_waits_s(windows: Windows) -> list[float]:
    """How long each stamped step waits for data.

    While the host waits, a GPU may still compute the step before. So what a stamped step and the
    host's wait take longer than a usual step is no wait.
    """
    steps = stamped_in(windows)
    sums_s = [(step.step_s or 0.0) + step.input_wait_s for step in steps]
    over_s = 0.0
    if sums_s and timings_in(windows):
        over_s = max(0.0, averaging(windows)(sums_s) - median_step_s(windows))
    return [max(0.0, step.input_wait_s - over_s) for step in steps]


def single_steps_s(windows: Windows) -> list[float]:
    """How long each stamped step takes, its wait for data included."""
    waits_s = input_waits_s(windows)
    steps = zip(stamped_in(windows), waits_s, strict=True)
    return [(step.step_s or 0.0) + wait_s for step, wait_s in steps]


def rare_waits_s(windows: Windows) -> float:
    """What a step waits on average for data that seldom comes late.

    The median stamped step does not wait for it.
    """
    if vary_in_shape(windows) or not timings_in(windows):
        return 0.0
    over_s = median_step_s(windows) - median(single_steps_s(windows))
    return max(0.0, min(over_s, input_wait_s(windows) - median(input_waits_s(windows))))


def slow_step_count(windows: Windows) -> int:
    """How many stamped steps take over 1.5 times their median; 0 if batches differ in shape."""
    return 0 if vary_in_shape(windows) else slow_steps(single_steps_s(windows))


def slow_steps_in(windows: Windows) -> SlowSteps:
    """The slow ones among the stamped steps."""
    return SlowSteps(count=slow_step_count(windows), timed=len(stamped_in(windows)))


def slow_s(windows: Windows) -> float:
    """What rare slow steps add to the step time, without their waits for data."""
    if vary_in_shape(windows):
        return 0.0
    rare_s = rare_waits_s(windows)
    times_s = [time_s - rare_s for time_s in step_times_s(windows)]
    steps = max(timing.steps for timing in timings_in(windows))
    return slow_time(times_s, steps, single_steps_s(windows))


def stamp_cost(windows: Windows) -> float | None:
    """The part by which a usual stamped step takes longer than another; None without both."""
    if not timings_in(windows) or not stamped_in(windows):
        return None
    usual_step_s = median_step_s(windows) - slow_s(windows) - rare_waits_s(windows)
    return averaging(windows)(single_steps_s(windows)) / usual_step_s - 1


def step_spread(windows: Windows) -> StepSpread | None:
    """How steps differ because their batches differ in shape; None if they do not."""
    times = single_steps_s(windows)
    if not vary_in_shape(windows) or len(times) < 2:
        return None
    # The host's work between steps, which stamps do not see, is about the same in all of them.
    rest_s = max(0.0, median_step_s(windows) - mean(times))
    half_s = median(times) + rest_s
    max_s = part95(times) + rest_s
    return StepSpread(p50_s=half_s, p95_s=max_s, steps=len(times))


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
        origin_s = began_s(windows)
    duration = step_time(windows, origin_s)
    slow_steps_s = slow_s(windows)
    parts = _parts(windows, duration.median - slow_steps_s)
    memory_peaks = peaks(windows)
    telemetry = sensors.telemetry(origin_s) or (None,) * len(split.batches)
    replicas = []
    for number, place in enumerate(used_places or range(len(split.batches))):
        batch = split.batches[number]
        replica = Replica(
            device=place,
            batch=batch,
            micro_batch=split.micro_batches[number],
            throughput=batch / duration.median,
            compute_s=parts.compute_s[number],
            update_s=parts.update_s[number],
            wait_s=parts.wait_s[number],
            utilisation=min(1.0, parts.compute_s[number] / duration.median),
            memory_peak_bytes=memory_peaks[number],
            telemetry=telemetry[number],
        )
        replicas.append(replica)
    return Measurement(
        batches=split.batches,
        micro_batches=split.micro_batches,
        global_batch=split.global_batch,
        step_time_s=duration,
        step_spread=step_spread(windows),
        throughput=throughput_of(split.global_batch, duration.samples),
        replicas=tuple(replicas),
        sync_s=parts.sync_s,
        input_wait_s=parts.input_wait_s,
        slow_s=slow_steps_s,
        slow_steps=slow_steps_in(windows) if slow_steps_s else None,
        excess_s=parts.excess_s,
        imbalance=parts.imbalance,
    )


def _parts(windows: Windows, step_s: float) -> StepParts:
    """Where a step of `step_s` seconds goes, by the stamped steps."""
    steps = stamped_in(windows)
    computes = [step.compute_s or () for step in steps]
    updates = [step.update_s or () for step in steps]
    average = averaging(windows)
    input_wait_s = average(input_waits_s(windows)) + rare_waits_s(windows)
    return split_step(step_s, computes, updates, input_wait_s, average)
