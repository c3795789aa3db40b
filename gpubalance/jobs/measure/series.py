"""Measures a split: warm-up, and windows of timings."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpubalance.errors import BadInput
from gpubalance.jobs.events import TimingDone, Watch
from gpubalance.jobs.measure.sensors import Sensors
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.timings import Peaks, Timings, Window, largest
from gpubalance.numbers.stats import mean, median
from gpubalance.numbers.steady import has_trend
from gpubalance.results.timing import Pulled, Timing
from gpubalance.settings.device import Device
from gpubalance.workers.messages import Measured, Pull, PulledAll
from gpubalance.workers.worker import Worker

# The part of a window in which steps are stamped. They have their own trace, so the rest pays
# nothing for them.
STAMPED_PART = 0.1
STAMPED_STEPS = 3  # in a window of given length
_STAMPED_STEPS = 2
# If batches differ in shape, step times are a distribution, which the stamped ones show.
_UNLIKE_STAMPED_PART = 0.3
_UNLIKE_STAMPED_STEPS = 14
WARMUP_STEPS = 10
_LONGEST_WARMUP_S = 60.0
_LONGEST_WARMUP_STEPS = 200
_SETTLING_STEPS = 3
_TRACED_STEPS = 2
_CLEARLY_FASTER = 0.95
_LONGEST_SETTLING_STEPS = 30
# What to do about a loss that is no number, with samples of the user's and with random ones.
_LOSS_OF_DATA = (
    "train a step of it without gpubalance: there is no NaN among the first samples of --data "
    "{given}, so look for "
    "values that are not scaled, a learning rate that is too high, and log(0) or a division "
    "by 0 in the loss"
)
_LOSS_OF_RANDOM = (
    "inputs are random numbers from 0 to 1, and labels fit the output: if the model takes others, "
    "measure with --data"
)


def _step_s(timing: Timing) -> float:
    return timing.step_s or timing.seconds / timing.steps


@dataclass
class Series(Timings):
    """The timings of a split that a worker measures now; `watch` gets each as it arrives.

    `name` is "even" or "held", or "" for a run's own split. With `pipeline` batches come from the
    user's own pipeline, else they lie on the devices. Of `devices`, the replicas, GPUs are read
    meanwhile. A user's data of fewer than `least_samples` is refused as soon as that is known.
    Windows have stamped steps if it `stamps`. `step_s` is the time of a step at the end of the
    warm-up, `peaks` the largest that the worker has told so far.
    """

    name: str = ""
    devices: tuple[Device, ...] = ()
    watch: Watch | None = None
    pipeline: bool = False
    stamps: bool = True
    least_samples: int = 0
    warmup_steps: int = 0
    step_s: float = 0.0
    peaks: Peaks = ()
    _differs: bool = False
    _late_parts: list[float] = field(default_factory=list)  # in this window

    def __post_init__(self) -> None:
        self.sensors = Sensors(self.devices)

    def add(self, window: Window) -> None:
        """Adds a window. Raises BadInput for one of another series, from a damaged journal."""
        if len(window.throttled) != len(self.devices or self.split.batches) or (
            self.stamps and not window.stamped
        ):
            raise BadInput(
                "the journal of this command is damaged", remedy="run it again without --resume"
            )
        self.windows.append(window)
        self.peaks = largest(self.peaks, window.memory_peak_bytes)

    @property
    def last(self) -> Timings:
        """What its last window gave."""
        return Timings(self.split, self.windows[-1:], self.sensors)

    def steps_per_timing(self, timing_s: float) -> int:
        """The number of steps in a timing of about that many seconds, by the latest step time."""
        return max(1, round(timing_s / self.step_s)) if self.step_s else 1

    def warm_up(self, worker: Worker) -> None:
        """Trains until the step time is steady, as far as this worker has not done so before.

        Its first split trains at least 10 steps, of which the last 10 show no trend; so does every
        split under XLA, which compiles each. Another one settles; one that it has trained with is
        ready. The stamped steps' own trace is warmed up too, one for splits in one piece and one
        for others. Raises OutOfMemory, and BadInput for a loss that is not a number from the first
        step on.
        """
        key, whole = (self.split, self.pipeline), worker.settings.xla or not worker.warm
        if key in worker.warm or (not whole and key in worker.trained):
            self.peaks = largest(self.peaks, worker.trained[key])
            return
        steps = self._first_step(worker)
        is_new = all(warm.accumulates != self.split.accumulates for warm, _ in worker.warm)
        if self.stamps and (whole or is_new):
            steps += self._steps(worker, _TRACED_STEPS, stamped=True)
        (self._train_until_steady if whole else self._train_until_settled)(worker, steps)
        worker.warm.add(key)

    def settle(self, worker: Worker, *, first: bool = True) -> list[Timing]:
        """A short warm-up for a worker that has trained with other batches: until no step is
        clearly faster.

        Trains at least 3 steps: what trains three times keeps training. Returns the last two, which
        are as fast as each other. Raises as `warm_up` does; a loss that is not a number matters
        only in the model's `first` measurement, as random data may lead to one later.
        """
        steps = self._first_step(worker, refuses=first)
        self._train_until_settled(worker, steps)
        return steps[-2:]

    def _train_until_steady(self, worker: Worker, steps: list[Timing]) -> None:
        end = time.monotonic() + _LONGEST_WARMUP_S
        while len(last := [*map(_step_s, steps[-WARMUP_STEPS:])]) < WARMUP_STEPS or has_trend(last):
            if len(steps) > _LONGEST_WARMUP_STEPS or (
                len(last) == WARMUP_STEPS and time.monotonic() > end
            ):
                self.steady = False
                break
            steps += self._steps(worker, 2)
        self.step_s = median(last)

    def _train_until_settled(self, worker: Worker, steps: list[Timing]) -> None:
        while len(steps) < _LONGEST_SETTLING_STEPS:
            if len(steps) >= _SETTLING_STEPS and _step_s(steps[-1]) >= _CLEARLY_FASTER * _step_s(
                steps[-2]
            ):
                break
            steps += self._steps(worker, 1)
        self.step_s = _step_s(steps[-1])

    def _steps(self, worker: Worker, count: int, *, stamped: bool = False) -> list[Timing]:
        self.warmup_steps += count
        return list(self.measure(worker, at_least=count, stamped=stamped))

    def _first_step(self, worker: Worker, *, refuses: bool = True) -> list[Timing]:
        steps = self._steps(worker, 1)
        if refuses and not steps[0].loss_is_finite:
            given = worker.settings.data
            raise BadInput(
                "the model's loss is not a number at the first step",
                remedy=_LOSS_OF_DATA.format(given=given) if given else _LOSS_OF_RANDOM,
            )
        return steps

    def window(
        self,
        worker: Worker,
        length: StoppingRule,
        settled: Sequence[Timing] = (),
        *,
        until_s: float = math.inf,
    ) -> Window:
        """Measures a window of that length, its stamped steps included; `settled` timings count
        too.

        The caller adds it; of one that an error cuts short, what was measured is added. A GPU whose
        clocks or temperature still move gets all of the time while its step time changes too,
        precise or not. After `until_s` on the monotonic clock it takes no more than the fewest
        timings. Raises PartialResult if a GPU's memory has failed, and what `Worker.measure` does.
        """
        timings, stamped = [*settled], list[Timing]()
        with self.sensors.watching():
            try:
                left = self._stamp(worker, length, stamped) if self.stamps else length
                self._until_known(worker, left, timings, until_s)
            except BaseException:
                if timings:
                    self.windows.append(self.taken(timings, stamped))
                raise
        return self.taken(timings, stamped)

    def taken(self, timings: Sequence[Timing], stamped: Sequence[Timing] = ()) -> Window:
        """A window of these timings, with what else the worker and the GPUs have told."""
        late_parts, self._late_parts = self._late_parts, []
        return Window(
            timings=tuple(timings),
            stamped=tuple(stamped),
            memory_peak_bytes=self.peaks,
            throttled=self.sensors.throttled or ((),) * len(self.peaks),
            late_part=mean(late_parts or [0.0]),
        )

    def _stamp(self, worker: Worker, length: StoppingRule, found: list[Timing]) -> StoppingRule:
        """Measures the stamped steps of a window, and returns what is left of its length.

        They come first: a result needs both kinds, so that a window that is cut short is sooner of
        use.
        """
        part, steps = STAMPED_PART, STAMPED_STEPS if length.least_s else _STAMPED_STEPS
        if self._differs:
            part, steps = _UNLIKE_STAMPED_PART, _UNLIKE_STAMPED_STEPS
        seconds = part * length.least_s or length.timing_s / 2
        found += self.measure(worker, seconds=seconds, at_least=steps, stamped=True)
        self.step_s = self.step_s or median([_step_s(one) for one in found])
        return length.less(part, len(found))

    def _until_known(
        self, worker: Worker, length: StoppingRule, found: list[Timing], until_s: float
    ) -> None:
        """Measures without stamps until that length is reached."""
        seconds, at_least = length.least_s, max(1, length.at_least - len(found))
        steps = self.steps_per_timing(length.timing_s)
        while True:
            found += self.measure(
                worker, seconds=seconds, at_least=at_least, steps_per_timing=steps
            )
            if length.is_reached(found, moves=self.sensors.move()) or time.monotonic() >= until_s:
                return
            seconds, at_least = 0.0, max(1, len(found) // 4)

    def measure(self, worker: Worker, **how: Any) -> Iterator[Timing]:
        """Yields each timing that the worker gives, as it comes. Of all else that it says the
        series takes note.
        """
        for reply in self._replies(worker, how):
            if isinstance(reply, Timing):
                self._differs = reply.unlike
                self._tell(reply)
                yield reply
                continue
            if "steps_per_timing" in how:
                self._late_parts.append(reply.late_part or 0.0)
            self.peaks = largest(self.peaks, reply.memory_peak_bytes)
            if reply.samples is not None and reply.samples < self.least_samples:
                # To be sure, as the number may be inexact: this raises BadInput for too few.
                list(
                    worker.replies(
                        Pull(global_batch=self.least_samples, seconds=0.0), Pulled, PulledAll
                    )
                )
                self.least_samples = 0

    def _replies(self, worker: Worker, how: dict[str, Any]) -> Iterator[Timing | Measured]:
        return worker.measure(self.split, pipeline=self.pipeline, **how)

    def _tell(self, timing: Timing) -> None:
        if self.watch is not None:
            split, step_s = (
                (self.name, self.devices, self.split.batches),
                timing.seconds / timing.steps,
            )
            self.watch(
                TimingDone(*split, step_s, timing.compute_s, timing.update_s, self.sensors.latest)
            )
