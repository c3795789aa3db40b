"""What a look at a subject gave, and the measurement that the windows of one split make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated

from pydantic import Field, model_validator

from gpubalance.jobs.measure.sensors import Sensors
from gpubalance.numbers.stats import half_width, interval95, mad, mean, median, part95
from gpubalance.planning.parts import StepParts, slow_steps, slow_time, split_step
from gpubalance.results.common import StepTime, Throughput
from gpubalance.results.run import Measurement, Replica, StepSpread
from gpubalance.results.telemetry import Telemetry
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import Peak

Told = tuple[Telemetry | None, ...]
Peaks = tuple[int | None, ...]
_CLEARLY_OVER = 1.01  # times the median's interval: the mean is hardly ever above that by chance


class Window(Record):
    """Timings of a subject, its stamped steps, and what its devices reported meanwhile; the rest is
    a value a device.

    `throttled` has NVML's reasons that may pass, `late_part` is that of `Measured`.
    """

    timings: Annotated[tuple[Timing, ...], Field(min_length=1)]
    stamped: tuple[Timing, ...] = ()
    memory_peak_bytes: tuple[Peak, ...]
    throttled: tuple[tuple[str, ...], ...]
    late_part: Annotated[float, Field(ge=0, le=1)]

    @model_validator(mode="after")
    def _has_a_value_for_each_device(self) -> Window:
        lengths = {len(self.memory_peak_bytes), len(self.throttled)}
        for one in self.stamped:
            if one.timeline is None:
                lengths |= {len(one.compute_s or ()), len(one.update_s or ())}
        if len(lengths) > 1:
            raise ValueError("a value for each device is needed")
        return self

    @property
    def span_s(self) -> tuple[float, float]:
        """When it began and ended, on the monotonic clock."""
        ends = [(one.ended_s - one.seconds, one.ended_s) for one in (*self.timings, *self.stamped)]
        return min(began for began, _ in ends), max(ended for _, ended in ends)

    def later(self, seconds: float) -> Window:
        """The same window, so many seconds later."""

        def moved(timings: tuple[Timing, ...]) -> tuple[Timing, ...]:
            return tuple(
                one.model_copy(update={"ended_s": one.ended_s + seconds}) for one in timings
            )

        return self.model_copy(
            update={"timings": moved(self.timings), "stamped": moved(self.stamped)}
        )


def throughput_of(samples: int, times_s: Sequence[float]) -> Throughput:
    """Samples per second: so many samples over the median of the times, which are in order."""
    known = interval95(times_s)
    ci95 = (samples / known[1], samples / known[0]) if known else None
    return Throughput(median=samples / median(times_s), ci95=ci95)


def largest(*peaks: Peaks) -> Peaks:
    """The largest of these peaks for each device."""
    each = zip(*filter(None, peaks), strict=True)
    return tuple(max((peak for peak in one if peak is not None), default=None) for one in each)


@dataclass
class Timings:
    """What the windows of one split amount to; `stamped` steps are apart, as stamping costs a
    little.

    `sensors` have read the GPUs meanwhile, if that was in this process. `steady` says that the
    warm-up ended without a trend.
    """

    split: Shares
    windows: list[Window] = field(default_factory=list)
    sensors: Sensors = field(default_factory=Sensors)
    steady: bool = True

    @property
    def timings(self) -> list[Timing]:
        """Those without stamps, in order of time."""
        return [one for window in self.windows for one in window.timings]

    @property
    def stamped(self) -> list[Timing]:
        """The stamped steps, in order of time."""
        return [one for window in self.windows for one in window.stamped]

    @property
    def memory_peak_bytes(self) -> Peaks:
        """The largest peak of each device."""
        return largest(*(one.memory_peak_bytes for one in self.windows))

    @property
    def loss_is_finite(self) -> bool:
        """Whether no loss was infinite or NaN."""
        return all(one.loss_is_finite for one in (*self.timings, *self.stamped))

    @property
    def throttled(self) -> tuple[tuple[str, ...], ...]:
        """NVML's reasons that slowed each device down in any window and may pass."""
        each = zip(*(one.throttled for one in self.windows), strict=True)
        return tuple(tuple(dict.fromkeys(chain(*reasons))) for reasons in each)

    @property
    def slowed(self) -> list[tuple[Device, tuple[str, ...]]]:
        """Each GPU that was throttled for a reason that passes, with NVML's reasons."""
        found = zip(self.sensors.devices, self.throttled, strict=False)
        return [(device, reasons) for device, reasons in found if reasons]

    @property
    def late_part(self) -> float:
        """The part of measured steps whose real compute took longer than the profile's time."""
        return mean([one.late_part for one in self.windows]) if self.windows else 0.0

    @property
    def step_times_s(self) -> list[float]:
        """Mean step time of each timing."""
        return [s.seconds / s.steps for s in self.timings]

    @property
    def usual_s(self) -> float:
        """The median of these."""
        return median(self.step_times_s)

    @property
    def began_s(self) -> float:
        """When the first timing began, on the monotonic clock."""
        return min(one[0].ended_s - one[0].seconds for one in (self.timings, self.stamped) if one)

    def step_time(self, origin_s: float) -> StepTime:
        """The step time in seconds; `at_s` has the end of each timing, from `origin_s` on the
        monotonic clock.
        """
        times = self.step_times_s
        return StepTime(
            median=median(times),
            mad=mad(times),
            ci95=interval95(times),
            steps_per_sample=max(s.steps for s in self.timings),
            samples=tuple(times),
            at_s=tuple(round(s.ended_s - origin_s, 3) for s in self.timings),
        )

    @property
    def throughput(self) -> Throughput:
        """Samples per second: the global batch over the step time."""
        return throughput_of(self.split.global_batch, self.step_times_s)

    @property
    def input_wait_s(self) -> float:
        """How long a step waits for data: the host's wait in the timings without stamps."""
        return median([s.input_wait_s / s.steps for s in self.timings])

    @property
    def unlike(self) -> bool:
        """Whether batches, and so steps, differ in shape."""
        return any(one.unlike for one in (*self.timings, *self.stamped))

    @property
    def steps(self) -> int:
        """Measured steps, stamped ones included."""
        return sum(s.steps for s in self.timings) + len(self.stamped)

    @property
    def precision(self) -> float:
        """Half the 95 % interval of the step time as a part of it; infinite if unknown."""
        known = half_width(self.step_times_s)
        return math.inf if known is None else known

    @property
    def _input_waits_s(self) -> list[float]:
        """How long each stamped step waits for data.

        While the host waits, a GPU may still compute the step before. So what a stamped step and
        the host's wait take longer than a usual step is no wait.
        """
        sums_s = [(s.step_s or 0.0) + s.input_wait_s for s in self.stamped]
        over_s = max(0.0, self._middle(sums_s) - self.usual_s) if self.timings and sums_s else 0.0
        return [max(0.0, s.input_wait_s - over_s) for s in self.stamped]

    @property
    def _single_steps_s(self) -> list[float]:
        return [
            (s.step_s or 0.0) + wait
            for s, wait in zip(self.stamped, self._input_waits_s, strict=True)
        ]

    @property
    def _rare_waits_s(self) -> float:
        """What a step waits for data that seldom comes late, on average: the median stamped step
        does not.
        """
        if self.unlike or not self.timings:
            return 0.0
        over_s = self.usual_s - median(self._single_steps_s)
        return max(0.0, min(over_s, self.input_wait_s - median(self._input_waits_s)))

    @property
    def slow_steps(self) -> int:
        """The number of stamped steps over 1.5 times their median; 0 if batches differ in shape,
        where steps do too.
        """
        return 0 if self.unlike else slow_steps(self._single_steps_s)

    @property
    def slow_s(self) -> float:
        """What rare slow steps add to the step time, without their waits for data."""
        if self.unlike:
            return 0.0
        rare_s = self._rare_waits_s  # once, as it takes a look at all timings
        times_s = [time_s - rare_s for time_s in self.step_times_s]
        return slow_time(times_s, max(s.steps for s in self.timings), self._single_steps_s)

    @property
    def mean_over_median(self) -> float:
        """The part by which the mean timing is longer than the median, 0 if that may be chance."""
        times = self.step_times_s
        interval = interval95(times)
        clear = interval is not None and mean(times) > _CLEARLY_OVER * interval[1]
        return mean(times) / median(times) - 1 if clear and not self.unlike else 0.0

    @property
    def stamp_cost(self) -> float | None:
        """The part by which a usual stamped step takes longer than one without stamps; None without
        both.
        """
        if not self.timings or not self.stamped:
            return None
        return (
            self._middle(self._single_steps_s) / (self.usual_s - self.slow_s - self._rare_waits_s)
            - 1
        )

    def _middle(self, steps_s: Sequence[float]) -> float:
        """The median of single steps, or the mean if batches differ in shape, as a timing is the
        mean of several.
        """
        return mean(steps_s) if self.unlike else median(steps_s)

    @property
    def _step_spread(self) -> StepSpread | None:
        times = self._single_steps_s
        if not self.unlike or len(times) < 2:
            return None
        # The host's work between steps, which stamps do not see, is about the same in all of them.
        rest_s = max(0.0, self.usual_s - mean(times))
        p50_s, p95_s = median(times) + rest_s, part95(times) + rest_s
        return StepSpread(p50_s=p50_s, p95_s=p95_s, steps=len(times))

    def measurement(
        self, devices: Sequence[int] = (), origin_s: float | None = None
    ) -> Measurement:
        """The measurement that the timings make; both kinds are needed.

        `devices` has the replicas' numbers in the result; by default they are numbered in order.
        Times count from `origin_s` on the monotonic clock, by default from the first timing.
        """
        origin_s = self.began_s if origin_s is None else origin_s
        step_time, slow_s = self.step_time(origin_s), self.slow_s
        input_wait_s = self._middle(self._input_waits_s) + self._rare_waits_s
        computes, updates = (
            [s.compute_s or () for s in self.stamped],
            [s.update_s or () for s in self.stamped],
        )
        parts = split_step(step_time.median - slow_s, computes, updates, input_wait_s, self._middle)
        told = self.sensors.telemetry(origin_s) or (None,) * len(self.split.batches)
        numbers = enumerate(devices or range(len(self.split.batches)))
        return Measurement(
            batches=self.split.batches,
            micro_batches=self.split.micro_batches,
            global_batch=self.split.global_batch,
            step_time_s=step_time,
            step_spread=self._step_spread,
            throughput=self.throughput,
            replicas=tuple(self._replica(*one, parts, step_time.median, told) for one in numbers),
            sync_s=parts.sync_s,
            input_wait_s=parts.input_wait_s,
            slow_s=slow_s,
            excess_s=parts.excess_s,
            imbalance=parts.imbalance,
        )

    def _replica(
        self, at: int, device: int, parts: StepParts, step_s: float, told: Told
    ) -> Replica:
        batch = self.split.batches[at]
        return Replica(
            device=device,
            batch=batch,
            micro_batch=self.split.micro_batches[at],
            throughput=batch / step_s,
            compute_s=parts.compute_s[at],
            update_s=parts.update_s[at],
            wait_s=parts.wait_s[at],
            utilisation=min(1.0, parts.compute_s[at] / step_s),
            memory_peak_bytes=self.memory_peak_bytes[at],
            telemetry=told[at],
        )
