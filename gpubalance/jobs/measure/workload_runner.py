"""Measures one workload: warms it up, has a worker train it, and makes a window of the replies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from gpubalance.errors import BadInput
from gpubalance.jobs.events import TimingDone, Watch
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.window import Peaks, Sensors, Window, Workload, largest
from gpubalance.numbers.stats import mean, median
from gpubalance.numbers.steady import has_trend
from gpubalance.results.timing import Prefetched, Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.workers.messages import Measured, Pipe, PrefetchedAll, Pull
from gpubalance.workers.worker import Worker

# The fraction of a window in which steps are stamped: these note when compute and update begin and
# end. They have their own trace, so the other steps pay nothing for it.
STAMPED_PART = 0.1
STAMPED_STEPS = 3  # at least, in a window of given length
_STAMPED_STEPS_IF_SHORT = 2  # at least, in one that ends once its step time is known
# If batches differ in shape, step times are a distribution, which the stamped ones show.
_UNLIKE_STAMPED_PART = 0.3
_UNLIKE_STAMPED_STEPS = 14
# While its step time is not precise, a window gets this fraction of timings more, then is judged
# again: few requests, and little time beyond what is needed.
_MORE_PART = 0.25
WARMUP_STEPS = 10
_LONGEST_WARMUP_S = 60.0
_LONGEST_WARMUP_STEPS = 200
SETTLING_STEPS = 3
_TRACED_STEPS = 2
_CLEARLY_FASTER = 0.95
_LONGEST_SETTLING_STEPS = 30
# What to do about a loss that is no number, with samples of the user's and with random ones.
_LOSS_OF_DATA = (
    "the first samples of --data {given} contain no NaN, but later ones may: read all "
    "of it once and look for NaN and infinity. If there is none, train one step without "
    "gpubalance: unscaled inputs, a high learning rate, log(0) or a division by 0 in the "
    "loss are the usual causes"
)
_LOSS_OF_RANDOM = (
    "inputs are random numbers from 0 to 1, and labels fit the output: if your model "
    "needs others, measure with --data"
)


def step_s_of(timing: Timing) -> float:
    """Seconds of a step; of a stamped one what its replicas take, without a wait for data.

    Stamps that come late show almost no time. So a stamped step counts at least half of `seconds`,
    in which there are at most two steps.
    """
    if timing.step_s is None:
        return timing.seconds / timing.steps
    return max(timing.step_s, (timing.seconds - timing.input_wait_s) / 2)


def steps_per_timing(timing_s: float, step_s: float) -> int:
    """The number of steps in a timing of about that many seconds; 1 if a step's time is unknown."""
    return max(1, round(timing_s / step_s)) if step_s else 1


def expected_window_s(rule: StoppingRule, step_s: float, noise: float = 0.0) -> float:
    """About how long a window of a warm workload takes, stamped steps included.

    `noise` is that of `StoppingRule.expected_s`.
    """
    measured_s = rule.expected_s(step_s, noise=noise)
    if rule.min_s:  # a window of given length, whose stamped steps are a part of it
        return measured_s
    return measured_s + max(rule.timing_s / 2, _STAMPED_STEPS_IF_SHORT * step_s)


@dataclass(frozen=True)
class WarmUp:
    """How a workload was warmed up, in all: by how many steps, and whether they became steady.

    `step_s` is the time of a step at the end, 0 if the worker had trained with the workload before
    and none was timed. `peaks` are the devices' largest until then. `shapes_differ`: the batches'.
    """

    steps: int = 0
    steady: bool = True
    step_s: float = 0.0
    peaks: Peaks = ()
    shapes_differ: bool = False


NOT_YET = WarmUp()


class TrainedBefore:
    """What a worker has trained so far, and what of that it need not be warmed up with again.

    A split goes with whether its batches come from the user's input pipeline. `peaks` has all that
    it trained, `warm` what it was warmed up with. `segments` has the steps that warmed up the cut
    model that it holds, by the model's segments and size of micro-batches.
    """

    def __init__(self) -> None:
        self.peaks: dict[tuple[BatchSplit, bool], Peaks] = {}
        self.warm: set[tuple[BatchSplit, bool]] = set()
        self.segments: dict[Hashable, int] = {}


_TRAINED_BEFORE = WeakKeyDictionary[Worker, TrainedBefore]()


def trained_before(worker: Worker) -> TrainedBefore:
    """What this worker has trained so far. It is forgotten with the worker."""
    return _TRAINED_BEFORE.setdefault(worker, TrainedBefore())


class WorkloadRunner:
    """A worker that trains a workload now, and what it has replied so far.

    `timings` and `stamped` are those of the window that is measured, `peaks` the largest of all
    replies and of the warm-up before. GPUs are read by the `sensors`; `watch`, if any, gets each
    timing as it arrives.
    """

    def __init__(
        self,
        worker: Worker,
        workload: Workload,
        sensors: Sensors,
        watch: Watch | None = None,
        before: WarmUp = NOT_YET,
    ) -> None:
        self.worker = worker
        self.workload = workload
        self.sensors = sensors
        self.peaks = before.peaks
        self.vary_in_shape = before.shapes_differ
        self.losses_are_finite = True  # so far, also of timings that do not count
        self.timings: list[Timing] = []
        self.stamped: list[Timing] = []
        self._watch = watch
        # By each reply of a window, the part of steps that took longer than their profile says
        self._late_parts: list[float] = []
        self._least_samples = workload.least_samples

    def train(
        self,
        *,
        seconds: float = 0.0,
        at_least: int = 1,
        steps_per_timing: int = 1,
        stamped: bool = False,
        until: Callable[[], bool] | None = None,
    ) -> Iterator[Timing]:
        """Yields each timing of the worker that counts, as it comes.

        See `Worker.measure`, and `Worker.pipe` for a cut. Raises what these do.
        """
        workload = self.workload
        if workload.cut is not None:
            timed = {
                "seconds": seconds,
                "at_least": at_least,
                "steps_per_timing": steps_per_timing,
                "stamped": stamped,
            }
            replies = self.worker.pipe(workload.cut.model_copy(update=timed))
        else:
            replies = self.worker.measure(
                workload.split,
                seconds=seconds,
                at_least=at_least,
                steps_per_timing=steps_per_timing,
                stamped=stamped,
                pipeline=workload.from_input_pipeline,
                until=until,
            )
        for reply in replies:
            if isinstance(reply, Timing):
                self.losses_are_finite &= reply.loss_is_finite
                if not reply.counts:
                    continue
                self.vary_in_shape = reply.shapes_differ
                self._report(reply)
                yield reply
            else:
                self._note(reply)
                if workload.cut is None:
                    key = (workload.split, workload.from_input_pipeline)
                    peaks = trained_before(self.worker).peaks
                    peaks[key] = reply.memory_peak_bytes

    def window(
        self,
        rule: StoppingRule,
        step_s: float = 0.0,
        settled: Sequence[Timing] = (),
        *,
        until_s: float = math.inf,
    ) -> Window:
        """Measures a window by that rule, its stamped steps included; `settled` timings count too.

        `step_s` is about what a step takes, 0 if that is unknown. While a GPU's clock or
        temperature changes and its step time too, it measures to the end of its time. After
        `until_s` on the monotonic clock it takes no more than the fewest timings. Raises
        PartialResult if a GPU's memory has failed, and what `Worker.measure` does; `timings` then
        has what was measured.
        """
        self.timings = list(settled)
        self.stamped = []
        with self.sensors.watching():
            if self.workload.wants_stamps:
                rule = self._stamp(rule)
                step_s = step_s or min(map(step_s_of, self.stamped))
            self._until_known(rule, step_s, until_s)
        return self.window_of(self.timings)

    def window_of(self, timings: Sequence[Timing]) -> Window:
        """The window that these timings make, with what else came meanwhile."""
        return Window(
            timings=tuple(timings),
            stamped=tuple(self.stamped),
            memory_peak_bytes=self.peaks,
            throttled=self.sensors.throttled or ((),) * len(self.peaks),
            late_part=mean(self._late_parts or [0.0]),
        )

    def _stamp(self, rule: StoppingRule) -> StoppingRule:
        """Measures the stamped steps of a window; returns the rule for the other steps.

        The stamped ones come first. A result needs both kinds, so even a window that is soon cut
        short can give one.
        """
        part = STAMPED_PART
        steps = _STAMPED_STEPS_IF_SHORT
        if self.vary_in_shape:
            part = _UNLIKE_STAMPED_PART
            steps = _UNLIKE_STAMPED_STEPS
        elif rule.min_s:
            steps = STAMPED_STEPS
        # A window that ends once it is known has at least 5 timings: half a one is a tenth of them.
        seconds = part * rule.min_s or rule.timing_s / 2
        for step in self.train(seconds=seconds, at_least=steps, stamped=True):
            self.stamped.append(step)
        return rule.less(part, len(self.stamped))

    def _until_known(self, rule: StoppingRule, step_s: float, until_s: float) -> None:
        """Measures without stamps until the rule is reached, or `until_s` has passed."""
        steps = steps_per_timing(rule.timing_s, step_s)
        seconds = rule.min_s
        at_least = max(1, rule.at_least - len(self.timings))
        self._late_parts = []  # those of the warm-up and of stamped steps do not count
        while True:
            for timing in self.train(
                seconds=seconds, at_least=at_least, steps_per_timing=steps
            ):
                self.timings.append(timing)
            if rule.is_reached(
                self.timings, gpu_is_changing=self.sensors.gpu_is_changing()
            ):
                return
            if time.monotonic() >= until_s:
                return
            seconds = 0.0
            at_least = max(1, int(_MORE_PART * len(self.timings)))

    def _note(self, reply: Measured) -> None:
        self._late_parts.append(reply.late_part or 0.0)
        self.note_peaks(reply.memory_peak_bytes)
        if reply.samples is not None and reply.samples < self._least_samples:
            # `samples` may be an estimate. Pulling counts them, once, and raises BadInput for too
            # few.
            pull = Pull(global_batch=self._least_samples, seconds=0.0)
            list(self.worker.replies(pull, Prefetched, PrefetchedAll))
            self._least_samples = 0

    def note_peaks(self, peaks: Peaks) -> None:
        """Takes note of each device's peak memory."""
        self.peaks = largest(self.peaks, peaks)

    def _report(self, timing: Timing) -> None:
        if self._watch is None:
            return
        workload = self.workload
        event = TimingDone(
            name=workload.name,
            devices=workload.devices,
            batches=workload.split.batches,
            # With the wait for data, stamped or not
            step_s=timing.seconds / timing.steps,
            compute_s=timing.compute_s,
            update_s=timing.update_s,
            gauges=self.sensors.latest,
        )
        self._watch(event)


def train_until_ready(runner: WorkloadRunner, before: WarmUp) -> WarmUp:
    """Trains until the step time is steady; returns the warm-up `before` with these steps added.

    A worker's first split trains until its last 10 steps show no trend, or for too long; so does
    every split under XLA, which compiles each. A later split only settles; one that the worker has
    trained with is ready. The stamped steps' own trace is warmed up too, one for splits without
    micro-batches and one for those with. Raises OutOfMemory, and BadInput for a loss that is not a
    number from the first step on.
    """
    if runner.workload.cut is not None:
        return _warm_up_cut(runner, runner.workload.cut, before)
    worker = runner.worker
    workload = runner.workload
    key = (workload.split, workload.from_input_pipeline)
    trained = trained_before(worker)
    until_steady = worker.settings.xla or not trained.warm
    if key in trained.warm or (key in trained.peaks and not until_steady):
        runner.note_peaks(trained.peaks[key])
        return replace(before, peaks=runner.peaks)
    steps = _first_steps(runner)
    has_new_trace = all(
        split.accumulates != workload.split.accumulates for split, _ in trained.warm
    )
    if workload.wants_stamps and (until_steady or has_new_trace):
        steps += runner.train(at_least=_TRACED_STEPS, stamped=True)
    if until_steady:
        steps = _until_steady(runner, steps)
        step_s = median([step_s_of(step) for step in steps[-WARMUP_STEPS:]])
        steady = before.steady and _are_steady(steps)
    else:
        steps = _until_settled(runner, steps)
        step_s = step_s_of(steps[-1])
        steady = before.steady
    trained.warm.add(key)
    count = before.steps + len(steps)
    return WarmUp(count, steady, step_s, runner.peaks, runner.vary_in_shape)


def _warm_up_cut(runner: WorkloadRunner, cut: Pipe, before: WarmUp) -> WarmUp:
    """Trains until steps no longer get faster, unless these segments ran last in this worker."""
    warmed_up = trained_before(runner.worker).segments
    key = cut.segments, cut.micro_batch
    if key in warmed_up:
        return replace(before, steps=warmed_up[key])
    warmed_up.clear()
    steps = train_until_settled(runner)
    warmed_up[key] = before.steps + len(steps)
    step_s = step_s_of(steps[-1])
    return WarmUp(
        warmed_up[key], before.steady, step_s, runner.peaks, runner.vary_in_shape
    )


def train_until_settled(
    runner: WorkloadRunner, *, refuses_bad_loss: bool = True
) -> list[Timing]:
    """The steps of a short warm-up, for a worker that has trained before.

    It ends once the last step is not clearly faster than the one before. It has at least 3 steps:
    what trains three times keeps training. Raises as `train_until_ready` does, but BadInput only if
    it `refuses_bad_loss`: that is for a model's first measurement, as random data may give a bad
    loss later.
    """
    return _until_settled(
        runner, _first_steps(runner, refuses_bad_loss=refuses_bad_loss)
    )


def _first_steps(
    runner: WorkloadRunner, *, refuses_bad_loss: bool = True
) -> list[Timing]:
    steps = list(runner.train(at_least=1))
    if refuses_bad_loss and not runner.losses_are_finite:
        given = runner.worker.settings.data
        raise BadInput(
            "the loss is NaN or infinite at the first step",
            remedy=_LOSS_OF_DATA.format(given=given) if given else _LOSS_OF_RANDOM,
        )
    return steps


def _until_steady(runner: WorkloadRunner, first: Sequence[Timing]) -> list[Timing]:
    """These first steps, and more until the last show no trend, or it has taken long enough."""
    end_s = time.monotonic() + _LONGEST_WARMUP_S
    steps = list(first)
    while not _are_steady(steps) and len(steps) <= _LONGEST_WARMUP_STEPS:
        if len(steps) >= WARMUP_STEPS and time.monotonic() > end_s:
            break
        steps += runner.train(at_least=2)
    return steps


def _are_steady(steps: Sequence[Timing]) -> bool:
    last = [step_s_of(step) for step in steps[-WARMUP_STEPS:]]
    return len(last) == WARMUP_STEPS and not has_trend(last)


def _until_settled(runner: WorkloadRunner, first: Sequence[Timing]) -> list[Timing]:
    """These first steps, and more until the last is not clearly faster than the one before."""
    steps = list(first)
    while len(steps) < _LONGEST_SETTLING_STEPS:
        if len(steps) >= SETTLING_STEPS:
            last_s = step_s_of(steps[-1])
            before_s = step_s_of(steps[-2])
            if last_s >= _CLEARLY_FASTER * before_s:
                break
        steps += runner.train(at_least=1)
    return steps
