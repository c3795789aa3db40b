"""Measures a split: warm-up, and windows of timings."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubalance.errors import BadInput
from gpubalance.jobs.events import TimingDone, Watch
from gpubalance.jobs.measure.sensors import Sensors
from gpubalance.jobs.measure.timings import Timings
from gpubalance.numbers.stats import median
from gpubalance.numbers.steady import has_trend
from gpubalance.results.telemetry import all_reasons
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device
from gpubalance.settings.requests import Measuring
from gpubalance.workers.messages import Measured
from gpubalance.workers.worker import Worker

# Long enough that the devices' short idle times at both ends of a timing do not count.
TIMING_S = 0.5
# In a window that ends after five timings; as long as in a probe and in a balance's rounds, for comparison.
SHORT_TIMING_S = 0.25
# The part of a window in which steps are stamped. They have their own trace, so the rest pays nothing for them.
STAMPED_PART = 0.1
STAMPED_STEPS = 3
# If batches differ in shape, step times are a distribution, which the stamped ones show.
_UNLIKE_STAMPED_PART = 0.3
_UNLIKE_STAMPED_STEPS = 14
WARMUP_STEPS = 10
_LONGEST_WARMUP_S = 60.0
_LONGEST_WARMUP_STEPS = 200
_SETTLING_STEPS = 3
LEAST_TIMINGS = 5  # in a window without a given length
_CLEARLY_FASTER = 0.95
_LONGEST_SETTLING_STEPS = 30


def timing_s(measuring: Measuring) -> float:
    """The seconds of a timing in these windows; a longer step is a timing by itself."""
    return SHORT_TIMING_S if measuring.duration_s is None else TIMING_S


@dataclass
class Series(Timings):
    """The timings of a split that is being measured: a worker adds to them, and `watch` gets each as it arrives.

    `name` is "even" or "held", or "" for a run's own split. With `pipeline` batches come from the user's own pipeline,
    else they lie on the devices. Of `devices`, the replicas, GPUs are read meanwhile. A user's data of fewer than
    `least_samples` is refused as soon as that is known.
    """

    name: str = ""
    devices: tuple[Device, ...] = ()
    watch: Watch | None = None
    timing_s: float = TIMING_S
    pipeline: bool = False
    least_samples: int = 0
    windows: int = 0
    warmup_steps: int = 0
    steady: bool = True
    loss_is_finite: bool = True
    _recent_step_s: float = 0.0
    _differs: bool = False
    _last_late_part: float = 0.0

    def __post_init__(self) -> None:
        self.sensors = Sensors(self.devices)

    @property
    def step_s(self) -> float:
        """The seconds of a step at the end of the warm-up; 0 before it."""
        return self._recent_step_s

    @property
    def steps_per_timing(self) -> int:
        """The number of steps in a timing, by the warm-up's step time."""
        return max(1, round(self.timing_s / self._recent_step_s)) if self._recent_step_s else 1

    def warm_up(self, worker: Worker, *, stamped: bool = True) -> None:
        """Trains until the step time is steady: at least 10 steps, of which the last 10 show no trend.

        With `stamped` the stamped steps' own trace is warmed up too. Raises OutOfMemory, and BadInput for a loss that
        is not a number from the first step on.
        """
        times: list[float] = []
        end = time.monotonic() + _LONGEST_WARMUP_S
        for timing in self._measure(worker, at_least=1):
            self._refuse_bad_loss(timing)
        if stamped:
            self.warmup_steps += len(list(self._measure(worker, at_least=2, stamped=True)))
        while len(times) < WARMUP_STEPS or has_trend(times[-WARMUP_STEPS:]):
            if len(times) >= WARMUP_STEPS and (time.monotonic() > end or len(times) > _LONGEST_WARMUP_STEPS):
                self.steady = False
                break
            times += [s.seconds / s.steps for s in self._measure(worker, at_least=2)]
        self.warmup_steps += len(times) + 1
        self._recent_step_s = median(times[-WARMUP_STEPS:])

    def settle(self, worker: Worker, *, first: bool = True, stamped: bool = False) -> None:
        """A short warm-up for a worker that has trained with other batches: until no step is clearly faster.

        `stamped`: the trace of its stamped steps is new.

        Trains at least 3 steps: what trains three times keeps training. Raises as `warm_up` does; a loss that is not
        a number matters only in the model's `first` measurement, as random data may lead to one later.
        """
        times: list[float] = []
        while len(times) < _SETTLING_STEPS or (
            times[-1] < _CLEARLY_FASTER * times[-2] and len(times) < _LONGEST_SETTLING_STEPS
        ):
            for timing in self._measure(worker, at_least=1):
                if first:
                    self._refuse_bad_loss(timing)
                times.append(timing.seconds / timing.steps)
        if stamped:
            self.warmup_steps += len(list(self._measure(worker, at_least=2, stamped=True)))
        self.warmup_steps += len(times)
        self._recent_step_s = times[-1]

    def _refuse_bad_loss(self, timing: Timing) -> None:
        if not timing.loss_is_finite:
            raise BadInput(
                "the model's loss is not a number at the first step",
                remedy="without --data inputs are random numbers from 0 to 1, labels fit the output: does the model "
                "take them?",
            )

    def _refuse_too_few(self, worker: Worker, samples: int | None) -> None:
        """Raises BadInput if the user's data has too few samples; reads it to be sure, as `samples` may be inexact."""
        if samples is not None and samples < self.least_samples:
            list(worker.pull(self.least_samples, seconds=0.0))
            self.least_samples = 0

    def window(self, worker: Worker, seconds: float, *, at_least: int = 1, within: float | None = None) -> Timings:
        """Measures for `seconds` and at least so many timings, adds them to the series, and returns the window.

        With `within` it ends sooner, after at least so many timings, once the step time is known to that part of it.
        Raises PartialResult if a GPU's memory has failed, and what `Worker.measure` does.
        """
        window = Timings(self.split, self.sensors)
        part, steps = STAMPED_PART, STAMPED_STEPS
        if self._differs:
            part, steps = _UNLIKE_STAMPED_PART, _UNLIKE_STAMPED_STEPS
        with self.sensors.watching():
            # Stamped steps come first: a result needs both kinds, so that a window that is cut short is sooner of use.
            for timing in self._measure(worker, seconds=seconds * part, at_least=steps, stamped=True):
                window.stamped.append(timing)
                self.stamped.append(timing)
            rest_s = seconds * (1 - part)
            if within is None:
                window.timings += self.measure(worker, rest_s, at_least=at_least)
            else:
                window.timings += self.until_known(worker, within, most_s=rest_s, at_least=at_least)
        self.sensors.check()
        window.memory_peak_bytes = self.memory_peak_bytes
        window.late_parts = [self._last_late_part]
        self.windows += 1
        return window

    def add(
        self,
        timings: Sequence[Timing],
        stamped: Sequence[Timing],
        peaks_bytes: Sequence[int | None],
        throttled: Sequence[tuple[str, ...]],
        late_part: float,
    ) -> Timings:
        """Adds a window that was measured before, and returns it."""
        window = Timings(self.split, timings=[*timings], stamped=[*stamped])
        window.note_peaks(peaks_bytes)
        self.windows += 1
        self.timings += timings
        self.stamped += stamped
        self.note_peaks(peaks_bytes)
        self.throttled_before = all_reasons(self.throttled_before, throttled)
        self.late_parts.append(late_part)
        self.loss_is_finite = self.loss_is_finite and all(one.loss_is_finite for one in (*timings, *stamped))
        return window

    def measure(self, worker: Worker, seconds: float, *, at_least: int = 1) -> list[Timing]:
        """Measures without stamps, for `seconds` and at least so many timings; adds the timings, and returns them."""
        before = len(self.timings)
        for timing in self._measure(worker, seconds=seconds, at_least=at_least, steps_per_timing=self.steps_per_timing):
            self.timings.append(timing)
        self.late_parts.append(self._last_late_part)
        return self.timings[before:]

    def until_known(
        self,
        worker: Worker,
        within: float,
        *,
        most_s: float,
        least_s: float = 0.0,
        at_least: int = LEAST_TIMINGS,
        until_s: float = math.inf,
    ) -> list[Timing]:
        """Measures without stamps until the step time is known to `within` that part of it, or `most_s` are over.

        After `until_s` on the monotonic clock it takes no more than the first `at_least` timings.
        """
        before = len(self.timings)
        self.measure(worker, least_s, at_least=at_least)
        while self.precision > within and self.timed_s < most_s and time.monotonic() < until_s:
            self.measure(worker, 0.0, at_least=len(self.timings) // 4)
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
            pipeline=self.pipeline,
        ):
            if isinstance(reply, Measured):
                self._last_late_part = reply.late_part or 0.0
                self.note_peaks(reply.memory_peak_bytes)
                self._refuse_too_few(worker, reply.samples)
            else:
                self.loss_is_finite = self.loss_is_finite and reply.loss_is_finite
                self._differs = reply.unlike
                if self.watch is not None:
                    step_s, stamps = reply.seconds / reply.steps, (reply.compute_s, reply.update_s)
                    split = self.name, self.devices, self.split.batches
                    self.watch(TimingDone(*split, step_s, *stamps, self.sensors.latest))
                yield reply
