"""The timings of one split, as they come from a worker, and what they amount to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from gpubalance.errors import BadInput
from gpubalance.jobs.measure.sensors import Sensors
from gpubalance.numbers.stats import half_width, has_trend, interval95, mad, median
from gpubalance.planning.parts import split_step
from gpubalance.results.common import StepTime, Throughput
from gpubalance.results.run import Measurement, Replica
from gpubalance.results.telemetry import all_reasons
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import Measured, Timing
from gpubalance.workers.worker import Worker

# The devices are idle for a moment at the ends of a timing: it is long enough for that not to count.
_TIMING_S = 0.5
# Part of a window in which steps are stamped. They are another trace of the step, so the rest pays nothing for them.
_STAMPED_PART = 0.1
_STAMPED_STEPS = 3
_WARMUP_STEPS = 10
_LONGEST_WARMUP_S = 60.0
_LONGEST_WARMUP_STEPS = 200
_SETTLING_STEPS = 3
_CLEARLY_FASTER = 0.95
_LONGEST_SETTLING_STEPS = 30


@dataclass
class Series:
    """Timings of one split, in the order of time; `stamped` apart, as stamping costs a little.

    `sensors` read the GPUs while a window is measured; `watch` is told of each timing as it comes.
    """

    split: Shares
    sensors: Sensors | None = None
    watch: Callable[[Timing], None] | None = None
    timings: list[Timing] = field(default_factory=list)
    stamped: list[Timing] = field(default_factory=list)
    timing_s: float = _TIMING_S
    memory_peak_bytes: tuple[int | None, ...] = ()
    windows: int = 0
    warmup_steps: int = 0
    steady: bool = True
    loss_is_finite: bool = True

    @property
    def steps_per_timing(self) -> int:
        """How many steps are timed as one, from what the warm-up took."""
        return max(1, round(self.timing_s / self._recent_step_s)) if self._recent_step_s else 1

    _recent_step_s: float = 0.0
    _last_late_part: float = 0.0
    _late_parts: list[float] = field(default_factory=list)
    _throttled_before: tuple[tuple[str, ...], ...] = ()

    def warm_up(self, worker: Worker) -> None:
        """Trains until the step time is steady: at least 10 steps, of which the last 10 show no trend.

        Raises OutOfMemory, and BadInput for a loss that is no number from the first step on.
        """
        times: list[float] = []
        end = time.monotonic() + _LONGEST_WARMUP_S
        for timing in self._measure(worker, at_least=1):
            self._refuse_bad_loss(timing)
        for timing in self._measure(worker, at_least=2, stamped=True):
            self.warmup_steps += timing.steps
        while len(times) < _WARMUP_STEPS or has_trend(times[-_WARMUP_STEPS:]):
            if len(times) >= _WARMUP_STEPS and (time.monotonic() > end or len(times) > _LONGEST_WARMUP_STEPS):
                self.steady = False
                break
            times += [s.seconds for s in self._measure(worker, at_least=2)]
        self.warmup_steps += len(times) + 1
        self._recent_step_s = median(times[-_WARMUP_STEPS:])

    def settle(self, worker: Worker, *, first: bool = True) -> None:
        """A short warm-up, for a worker that has trained with other batches: until no step is clearly faster.

        At least 3 steps: what trains three times trains on. Raises as `warm_up` does; where it is not the model's
        `first` measurement, a loss that is no number is no reason to, as random data may lead to one.
        """
        times: list[float] = []
        while len(times) < _SETTLING_STEPS or (
            times[-1] < _CLEARLY_FASTER * times[-2] and len(times) < _LONGEST_SETTLING_STEPS
        ):
            for timing in self._measure(worker, at_least=1):
                if first:
                    self._refuse_bad_loss(timing)
                times.append(timing.seconds)
        self.warmup_steps += len(times)
        self._recent_step_s = times[-1]

    def _refuse_bad_loss(self, timing: Timing) -> None:
        if not timing.loss_is_finite:
            raise BadInput(
                "the model's loss is not a number at the first step",
                remedy="inputs are random numbers from 0 to 1, labels fit the output: does the model take them?",
            )

    def window(self, worker: Worker, seconds: float) -> Series:
        """Measures for that long, adds it to this series, and gives the window as one of its own.

        Raises PartialResult where a GPU's memory has failed, and what `Worker.measure` does.
        """
        window = Series(self.split, self.sensors)
        with self.sensors.watching() if self.sensors else nullcontext():
            # The stamped steps first: a result needs both kinds, so one that is cut short is a result the sooner.
            for timing in self._measure(worker, seconds=seconds * _STAMPED_PART, at_least=_STAMPED_STEPS, stamped=True):
                window.stamped.append(timing)
                self.stamped.append(timing)
            window.timings += self.measure(worker, seconds * (1 - _STAMPED_PART))
        if self.sensors is not None:
            self.sensors.check()
        window.memory_peak_bytes = self.memory_peak_bytes
        window._late_parts = [self._last_late_part]
        self.windows += 1
        return window

    def add(
        self,
        timings: Sequence[Timing],
        stamped: Sequence[Timing],
        peaks_bytes: Sequence[int | None],
        throttled: Sequence[tuple[str, ...]],
        late_part: float,
    ) -> Series:
        """Adds a window that was measured before, and gives it as a series of its own."""
        window = Series(self.split, timings=[*timings], stamped=[*stamped])
        window.note_peaks(peaks_bytes)
        self.windows += 1
        self.timings += timings
        self.stamped += stamped
        self.note_peaks(peaks_bytes)
        self._throttled_before = all_reasons(self._throttled_before, throttled)
        self._late_parts.append(late_part)
        self.loss_is_finite = self.loss_is_finite and all(one.loss_is_finite for one in (*timings, *stamped))
        return window

    @property
    def throttled(self) -> tuple[tuple[str, ...], ...]:
        """NVML's reasons, of each device, for slowing it down in any of its windows; those that pass."""
        now = self.sensors.throttled if self.sensors else ()
        return all_reasons(self._throttled_before, now) or ((),) * len(self.split.batches)

    def measure(self, worker: Worker, seconds: float, *, at_least: int = 1) -> list[Timing]:
        """Measures for that long without stamps, and at least so many timings; adds them, and gives them."""
        before = len(self.timings)
        for timing in self._measure(worker, seconds=seconds, at_least=at_least, steps_per_timing=self.steps_per_timing):
            self.timings.append(timing)
        self._late_parts.append(self._last_late_part)
        return self.timings[before:]

    def _measure(
        self,
        worker: Worker,
        *,
        seconds: float = 0.0,
        at_least: int = 1,
        steps_per_timing: int = 1,
        stamped: bool = False,
    ) -> Iterator[Timing]:
        for reply in worker.measure(
            self.split,
            seconds=seconds,
            at_least=at_least,
            steps_per_timing=steps_per_timing,
            stamped=stamped,
        ):
            if isinstance(reply, Measured):
                self._last_late_part = reply.late_part or 0.0
                self.note_peaks(reply.memory_peak_bytes)
            else:
                self.loss_is_finite = self.loss_is_finite and reply.loss_is_finite
                if self.watch is not None:
                    self.watch(reply)
                yield reply

    def note_peaks(self, peaks_bytes: Sequence[int | None]) -> None:
        """Takes the larger peak of each device."""
        before = self.memory_peak_bytes or (None,) * len(self.split.batches)
        self.memory_peak_bytes = tuple(
            max((x for x in pair if x is not None), default=None) for pair in zip(before, peaks_bytes, strict=True)
        )

    @property
    def late_part(self) -> float:
        """Part of the measured steps in which the real compute took longer than the profile's time."""
        return sum(self._late_parts) / len(self._late_parts) if self._late_parts else 0.0

    @property
    def step_times_s(self) -> list[float]:
        """Mean step time of each timing."""
        return [s.seconds / s.steps for s in self.timings]

    @property
    def began_s(self) -> float:
        """When the first of its timings began, on the monotonic clock."""
        first = min((one[0] for one in (self.timings, self.stamped) if one), key=lambda timing: timing.ended_s)
        return first.ended_s - first.seconds

    def step_time(self, origin_s: float) -> StepTime:
        """Seconds a step, with its timings, which ended so long after a moment of the monotonic clock."""
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
        times, global_batch = self.step_times_s, self.split.global_batch
        interval = interval95(times)
        known = interval is not None and interval[0] > 0
        return Throughput(
            median=global_batch / median(times),
            ci95=(global_batch / interval[1], global_batch / interval[0]) if interval and known else None,
        )

    @property
    def steps(self) -> int:
        """Measured steps, stamped ones included."""
        return sum(s.steps for s in self.timings) + len(self.stamped)

    @property
    def precision(self) -> float:
        """Half the 95 % interval of the step time as a part of it; infinite where it is not known."""
        known = half_width(self.step_times_s)
        return math.inf if known is None else known

    @property
    def stamp_cost(self) -> float | None:
        """By what part a stamped step takes longer than one without stamps."""
        if not self.timings or not self.stamped:
            return None
        return median([(s.step_s or 0.0) + s.input_wait_s for s in self.stamped]) / median(self.step_times_s) - 1

    def measurement(self, devices: Sequence[int], origin_s: float | None = None) -> Measurement:
        """What it amounts to; `devices` are the replicas' numbers among the result's. Needs both kinds of timing.

        Times count from `origin_s` on the monotonic clock, or from its own beginning.
        """
        origin_s = self.began_s if origin_s is None else origin_s
        step_time = self.step_time(origin_s)
        step_time_s = step_time.median
        input_wait_s = median([s.input_wait_s for s in self.stamped])
        parts = split_step(step_time_s, [s.compute_s or () for s in self.stamped], input_wait_s)
        peaks = self.memory_peak_bytes or (None,) * len(self.split.batches)
        return Measurement(
            batches=self.split.batches,
            micro_batches=self.split.micro_batches,
            global_batch=self.split.global_batch,
            step_time_s=step_time,
            throughput=self.throughput,
            replicas=tuple(
                Replica(
                    device=device,
                    batch=batch,
                    micro_batch=micro_batch,
                    throughput=batch / step_time_s,
                    compute_s=compute,
                    wait_s=wait,
                    utilisation=min(1.0, compute / step_time_s),
                    memory_peak_bytes=peak,
                    telemetry=told,
                )
                for device, batch, micro_batch, compute, wait, peak, told in zip(
                    devices,
                    self.split.batches,
                    self.split.micro_batches,
                    parts.compute_s,
                    parts.wait_s,
                    peaks,
                    self.sensors.telemetry(origin_s) if self.sensors else [None] * len(self.split.batches),
                    strict=True,
                )
            ),
            sync_s=parts.sync_s,
            input_wait_s=parts.input_wait_s,
            excess_s=parts.excess_s,
            imbalance=parts.imbalance,
        )
