"""Measures a split interleaved with its baseline, the even split, and decides whether to go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.events import (
    Doing,
    Event,
    PipeWindowDone,
    TimeLeft,
    TurnDone,
    WindowDone,
)
from gpubalance.jobs.measure.figures import (
    Throttled,
    began_s,
    peaks,
    precision,
    step_time,
    step_times_s,
    throttled_gpus,
    throughput_of,
    usual_s,
)
from gpubalance.jobs.measure.input_pipeline import measure_input_pipeline
from gpubalance.jobs.measure.measurement import measurement
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.memory_search import JointMemorySearch
from gpubalance.jobs.measure.run_state import RunState
from gpubalance.jobs.measure.stopping import HOPELESS, PRECISE_ENOUGH, StoppingRule
from gpubalance.jobs.measure.warnings import throttled_text, too_slow_windows
from gpubalance.jobs.measure.window import Turn, Workload
from gpubalance.numbers.units import format_percent
from gpubalance.results.independent import OwnWindow
from gpubalance.results.run import SoloBest
from gpubalance.results.warnings import warning
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.settings.measuring import Measuring, window_place
from gpubalance.settings.requests import RunRequest

_KNOWN = f"known within ± {format_percent(PRECISE_ENOUGH)} (95 %)"


class JointRun:
    """Measures the split of a run, and the even split beside it if that is asked for.

    The `findings` make the result, at any time. If batches come `from_input_pipeline`, the user's
    own, that is measured alone first. If it `refuses_too_slow`, a first window of the split whose
    steps mostly take clearly longer than by the devices' profiles ends it with UsageError.
    """

    def __init__(
        self,
        asked: RunRequest,
        measurer: Measurer,
        solo: tuple[SoloBest, ...] | None = None,
        *,
        from_input_pipeline: bool = False,
        refuses_too_slow: bool = False,
    ) -> None:
        self.findings = RunState(asked, measurer, solo, from_input_pipeline)
        self.measurer = measurer
        self._refuses_too_slow = refuses_too_slow
        self.request = asked.without_idle  # devices without samples are no replicas

    def measure(self) -> None:
        """Measures to the end. Raises OutOfMemory if the run's own split does not fit."""
        measurer = self.measurer
        findings = self.findings
        measuring = self.request.measuring
        split = self.request.split
        if findings.from_input_pipeline:
            findings.input_pipeline = measure_input_pipeline(
                measurer.worker_group,
                split.global_batch,
                measurer.watch,
                measuring.duration_s,
            )
        measurer.watch(Doing(f"warming up {split}"))
        measurer.warm_up(findings.own)
        if measuring.baseline == "even" and len(self.request.devices) > 1:
            self._warm_up_even()
        self._measure_in_turns()
        findings.complete = True

    def _measure_in_turns(self) -> None:
        """Measures windows, and goes on without the even split if that runs out of memory."""
        findings = self.findings
        # `measure_interleaved` goes on from the windows that there are, so a second pass repeats
        # none.
        while True:
            # For `measure_interleaved` to fill in
            doing = f"measuring {self.request.split}, {{window}}"
            if findings.even_is_another:
                doing += ", interleaved with the even split"
            # All workloads need the same devices, so each has a turn of its own.
            turns: list[Turn] = [(workload,) for workload in findings.workloads()]
            try:
                measure_interleaved(
                    self.measurer, turns, self.request.measuring, doing, self._look
                )
            except OutOfMemory as error:
                even_failed = self.measurer.current == (findings.even,)
                if not (even_failed and findings.even_is_another):
                    raise
                self._give_up_even(error)
            else:
                return

    def _look(self, turn: Turn) -> None:
        """Raises UsageError, and keeps no window, if this machine can't follow the profile."""
        own = self.findings.own
        if turn != (own,) or not self._refuses_too_slow:
            return
        request = self.request
        windows = self.measurer.windows[own]
        fault = too_slow_windows(own, windows, request.settings, request.joint)
        if fault is not None:
            self.measurer.forget(turn)
            raise fault

    def _warm_up_even(self) -> None:
        """Warms up the largest even split that fits; goes on without it if none does."""
        split = self.request.split
        even = BatchSplit.even(split.global_batch, len(self.request.devices))
        if even == split:
            self.findings.even = self.findings.own
            return
        try:
            self.findings.even = self._warm_up_largest(even)
        except OutOfMemory as error:
            self._give_up_even(error)

    def _give_up_even(self, error: OutOfMemory) -> None:
        self.measurer.watch(
            Doing(f"{error.message}: continuing without the even split")
        )
        self.findings.even = None
        self.findings.warnings.append(
            warning("even-split-out-of-memory", what=error.message)
        )

    def _warm_up_largest(self, even: BatchSplit) -> Workload:
        """The even split, warmed up, or the largest equal shares that fit without micro-batches."""
        devices = self.request.devices
        measurer = self.measurer
        peaks = measurer.warm_up_of(self.findings.own).peaks
        fitting = JointMemorySearch(
            measurer.worker_group, self.request, measurer.watch, peaks
        )
        too_small_device = fitting.device_too_small_for(even)
        if too_small_device is None:
            try:
                return self._warm_up_as_even(even)
            except OutOfMemory as error:
                too_small_device = "a device"
                if error.replica is not None:
                    too_small_device = devices[error.replica].label
        too_large = f"the even split {even} does not fit on {too_small_device}"
        measurer.watch(Doing(f"{too_large}; looking for the largest that does"))
        share = fitting.largest_even_share(max(even.batches))
        if share == max(even.batches):
            # It fits after all. Not (share,) * n: the shares of the even split may differ by one.
            return self._warm_up_as_even(even)
        return self._warm_up_as_even(BatchSplit((share,) * len(devices)))

    def _warm_up_as_even(self, split: BatchSplit) -> Workload:
        self.measurer.watch(
            Doing(f"warming up the even split {split}, to compare with")
        )
        even = Workload(
            split,
            self.request.devices,
            name="even",
            is_baseline=True,
            from_input_pipeline=self.findings.from_input_pipeline,
        )
        self.measurer.warm_up(even)
        return even


def measure_interleaved(
    measurer: Measurer,
    turns: Sequence[Turn],
    measuring: Measuring,
    doing: str,
    look: Callable[[Turn], None] = lambda _: None,
) -> None:
    """Measures a window in each of the turns again and again, so that a drift affects all alike.

    Windows that the measurer has already count. After those that `measuring` asks for, more follow
    until all are known within ± 1 %, unless even `max_windows` could not come near that. One more
    follows if a GPU was throttled. `doing` is what to tell, with `{window}` and `{what}` in braces.
    `look` is called after the first window of each turn, and raises if that says not to go on.
    """
    planned = max(measuring.windows, *map(measurer.window_count, turns))
    is_once_more = False
    while True:
        number = 1 + min(map(measurer.window_count, turns))
        if number > planned:
            so_far = number - 1
            half_width = _half_width(measurer, turns)
            why = _why_more(half_width, so_far, measuring.max_windows)
            # With `duration_s` none of them ended because its step time was known.
            if half_width <= PRECISE_ENOUGH and measuring.duration_s is None:
                measurer.watch(Doing(f"{_KNOWN} after {so_far} windows"))
            throttled = _throttled(measurer, turns)
            if why is None and throttled and not is_once_more:
                is_once_more = True
                why = f"{throttled_text(throttled)}: measuring once more"
            if why is None:
                return
            measurer.watch(Doing(why))
        _measure_each(measurer, turns, measuring, number, planned, doing, look)


def _measure_each(
    measurer: Measurer,
    turns: Sequence[Turn],
    measuring: Measuring,
    number: int,
    planned: int,
    doing: str,
    look: Callable[[Turn], None],
) -> None:
    """Measures the window of that number in each turn that does not have it yet."""
    round_began_s = time.monotonic()
    rule = StoppingRule.of_window(measuring)
    # They alternate in going first: as a card gets hotter, the last one is always a little slower.
    in_order = list(turns)
    if number % 2 == 0:
        in_order.reverse()
    for turn in in_order:
        if measurer.window_count(turn) < number:
            if number == 1:
                measurer.watch(TimeLeft(_expected_s(measurer, turns, rule, planned)))
            text = doing.format(window=window_place(number, planned), what=_what(turn))
            measurer.take(turn, rule, number, text)
            measurer.watch(_event(measurer, turn, number, planned))
            if number == 1:
                look(turn)
    windows_left = max(0, planned - number)
    measurer.watch(TimeLeft(windows_left * (time.monotonic() - round_began_s)))


def _expected_s(
    measurer: Measurer, turns: Sequence[Turn], rule: StoppingRule, planned: int
) -> float:
    """What the windows that are left take by the step times of the warm-up."""
    left_s = 0.0
    for turn in turns:
        step_s = max(measurer.warm_up_of(workload).step_s for workload in turn)
        windows = planned - measurer.window_count(turn)
        left_s += windows * rule.expected_s(step_s)
    return left_s


def _half_width(measurer: Measurer, turns: Sequence[Turn]) -> float:
    """That of the least known workload, as a part of its step time; infinite if unknown."""
    workloads = [workload for turn in turns for workload in turn]
    return max(precision(measurer.windows[workload]) for workload in workloads)


def _why_more(half_width: float, windows: int, maximum: int) -> str | None:
    """Why one more window is worth its time, None if it is not."""
    if half_width <= PRECISE_ENOUGH or not _can_become_precise(
        half_width, windows, maximum
    ):
        return None
    return f"not yet {_KNOWN}: one more window"


def _event(measurer: Measurer, turn: Turn, number: int, of: int) -> Event:
    """The event of a turn's latest windows."""
    workload, *_ = turn
    if workload.cut is not None:
        windows = measurer.windows[workload]
        rate = throughput_of(workload.split.global_batch, step_times_s(windows))
        return PipeWindowDone(number, of, rate.median, usual_s(windows))
    if workload.is_independent:
        parts = tuple(_own_window(measurer, workload) for workload in turn)
        if len(turn) == 1:
            return TurnDone(number, of, "alone", parts)
        return TurnDone(number, of, "at once", parts)
    last = measurer.windows[workload][-1:]
    measured = measurement(workload.split, last, measurer.sensors(workload))
    return WindowDone(number, of, workload.name, workload.devices, measured)


def _own_window(measurer: Measurer, workload: Workload) -> OwnWindow:
    """What the last window of a model of its own gave."""
    last = measurer.windows[workload][-1:]
    origin_s = began_s(last)
    own_time = step_time(last, origin_s)
    batch = workload.split.global_batch
    return OwnWindow(
        device=workload.devices[0],
        batch=batch,
        step_time_s=own_time,
        throughput=throughput_of(batch, step_times_s(last)),
        memory_peak_bytes=peaks(last)[0],
        telemetry=measurer.sensors(workload).telemetry(origin_s)[0],
    )


def _throttled(measurer: Measurer, turns: Sequence[Turn]) -> Throttled:
    """Each GPU that was throttled, except those of baselines."""
    throttled: list[tuple[Device, tuple[str, ...]]] = []
    for turn in turns:
        for workload in turn:
            if not workload.is_baseline:
                throttled += throttled_gpus(
                    workload.devices, measurer.windows[workload]
                )
    return throttled


def _what(turn: Turn) -> str:
    """`GPU:0 alone`, or `all 2 devices at once`."""
    first = turn[0]
    if len(turn) > 1:
        return f"all {len(turn)} devices {first.name}"
    return f"{' and '.join(device.label for device in first.devices)} {first.name}"


def _can_become_precise(half_width: float, windows: int, maximum: int) -> bool:
    """Whether `maximum` windows could come near, if `windows` of them leave that half-width."""
    if windows >= maximum:
        return False
    if math.isinf(half_width):  # nothing is known yet
        return True
    return half_width * math.sqrt(windows / maximum) <= HOPELESS
