"""Measures workloads interleaved, window by window, until their step times are precise.

`JointRun` does so with a split and its baseline, the even split. `measure_interleaved` also
measures independent models, one a device (jobs/independent), and cut models (jobs/layers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.events import (
    Doing,
    Event,
    PipeWindowDone,
    TimeLeft,
    WindowDone,
)
from gpubalance.jobs.measure.figures import (
    began_s,
    measurement,
    median_step_s,
    peaks,
    precision,
    step_time,
    step_times_s,
    throttled_gpus,
    throughput_of,
)
from gpubalance.jobs.measure.input_pipeline import measure_input_pipeline
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.out_of_memory import JointMemorySearch
from gpubalance.jobs.measure.run_state import RunState
from gpubalance.jobs.measure.stopping import PRECISE_ENOUGH, StoppingRule
from gpubalance.jobs.measure.warnings import throttled_text, too_slow_windows
from gpubalance.jobs.measure.window import MeasuredTogether, Workload
from gpubalance.jobs.measure.workload_runner import SETTLING_STEPS, expected_window_s
from gpubalance.numbers.units import format_percent
from gpubalance.results.independent import OwnWindow
from gpubalance.results.run import SoloBest
from gpubalance.results.warnings import warning
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.settings.measuring import EVEN_SPLIT, Measuring, window_place
from gpubalance.settings.requests import RunRequest

# In two windows step times vary so many times as much as in the few seconds of a round: seven
# balances on a shared machine, 0.7 to 5.4 times.
_MORE_IN_WINDOWS = 2.0
# So many steps longer takes a window after one of another split: on two fake GPUs.
_STEPS_TO_CHANGE = 3
_KNOWN = f"known within ± {format_percent(PRECISE_ENOUGH)} (95 %)"


class JointRun:
    """Measures the split of a run, and the even split beside it if `--baseline even` asks for it.

    `state` has up to three workloads: `own`, the run's own split; `even`, the even split; and
    `held`, the own split on batches that stay on the devices, if the batches of `own` come from the
    user's input pipeline. `state.result()` gives the result so far, at any time.
    """

    def __init__(
        self,
        asked: RunRequest,
        measurer: Measurer,
        solo: tuple[SoloBest, ...] | None = None,
        *,
        from_input_pipeline: bool = False,
        refuses_too_slow: bool = False,
        window_s: float = 0.0,
    ) -> None:
        """Measures nothing yet.

        asked                the run; its devices without samples are left out
        solo                 the devices' best throughputs alone, to compare with
        from_input_pipeline  batches come from the user's own pipeline, measured alone first
        refuses_too_slow     UsageError if most steps of the split's first window take clearly
                             longer than the devices' profiles say
        window_s             about what a window takes, if that is known
        """
        self.state = RunState(asked, measurer, solo, from_input_pipeline)
        self.measurer = measurer
        self._refuses_too_slow = refuses_too_slow
        self._window_s = window_s
        self.request = asked.without_idle

    def measure(self) -> None:
        """Measures to the end. Raises OutOfMemory if the run's own split does not fit."""
        measurer = self.measurer
        state = self.state
        measuring = self.request.measuring
        split = self.request.split
        if state.from_input_pipeline:
            state.input_pipeline = measure_input_pipeline(
                measurer.worker_group,
                split.global_batch,
                measurer.watch,
                measuring.duration_s,
            )
        measurer.watch(Doing(f"warming up {split}"))
        measurer.warm_up(state.own)
        if measuring.baseline == "even" and len(self.request.devices) > 1:
            self._warm_up_even()
        self._measure_or_give_up_even()
        state.complete = True

    def _measure_or_give_up_even(self) -> None:
        state = self.state
        try:
            self._measure_workloads()
        except OutOfMemory as error:
            failed = self.measurer.current  # what was measured when the error came
            # The even split may be the run's own split: without that there is nothing to measure.
            if failed != (state.even,) or not state.measures_even_too:
                raise
            self._give_up_even(error)
        else:
            return
        # Measures the windows that are missing, without the even split. This is outside of the
        # `except` block, so that an error here does not seem to come from the first one.
        self._measure_workloads()

    def _measure_workloads(self) -> None:
        beside = ""
        if self.state.measures_even_too:
            beside = ", interleaved with the even split"

        def describe(window: str, _: str) -> str:
            return f"measuring {self.request.split}, {window}{beside}"

        # All workloads need the same devices, so no two are measured at the same time: each is
        # alone in its `MeasuredTogether`.
        interleaved: list[MeasuredTogether] = []
        for workload in self.state.workloads():
            interleaved.append((workload,))
        measure_interleaved(
            self.measurer,
            interleaved,
            self.request.measuring,
            describe,
            self._refuse_if_too_slow,
            self._window_s,
        )

    def _refuse_if_too_slow(self, workloads: MeasuredTogether) -> None:
        """Raises UsageError, and keeps no window, if this machine can't follow the profile."""
        own = self.state.own
        if workloads != (own,) or not self._refuses_too_slow:
            return
        request = self.request
        windows = self.measurer.windows[own]
        joint_profile = request.joint
        fault = too_slow_windows(own, windows, request.settings, joint_profile)
        if fault is not None:
            self.measurer.forget(workloads)
            raise fault

    def _warm_up_even(self) -> None:
        """Warms up the largest even split that fits; goes on without it if none does."""
        split = self.request.split
        even = BatchSplit.even(split.global_batch, len(self.request.devices))
        if even == split:
            self.state.even = self.state.own
            return
        try:
            self.state.even = self._warm_up_largest(even)
        except OutOfMemory as error:
            self._give_up_even(error)

    def _give_up_even(self, error: OutOfMemory) -> None:
        self.measurer.watch(
            Doing(f"{error.message}: continuing without the even split")
        )
        self.state.even = None
        self.state.warnings.append(
            warning("even-split-out-of-memory", what=error.message)
        )

    def _warm_up_largest(self, even: BatchSplit) -> Workload:
        """The even split, warmed up, or the largest equal shares that fit without micro-batches."""
        devices = self.request.devices
        measurer = self.measurer
        own_peaks = measurer.warm_up_of(self.state.own).peaks
        search = JointMemorySearch(
            measurer.worker_group, self.request, measurer.watch, own_peaks
        )
        too_small_device = search.device_too_small_for(even)
        if too_small_device is None:
            try:
                return self._warm_up_as_even(even)
            except OutOfMemory as error:
                too_small_device = "a device"
                if error.replica is not None:
                    too_small_device = devices[error.replica].label
        too_large = f"the even split {even} does not fit on {too_small_device}"
        measurer.watch(Doing(f"{too_large}; looking for the largest that does"))
        share = search.largest_even_share(max(even.batches))
        if share < max(even.batches):
            return self._warm_up_as_even(BatchSplit((share,) * len(devices)))
        # Shares as large as the even split's fit after all. So this takes the even split itself,
        # whose shares may differ by one.
        return self._warm_up_as_even(even)

    def _warm_up_as_even(self, split: BatchSplit) -> Workload:
        self.measurer.watch(
            Doing(f"warming up the even split {split}, to compare with")
        )
        even = Workload(
            split,
            self.request.devices,
            name=EVEN_SPLIT,
            is_baseline=True,
            from_input_pipeline=self.state.from_input_pipeline,
        )
        self.measurer.warm_up(even)
        return even


def measure_interleaved(
    measurer: Measurer,
    interleaved: Sequence[MeasuredTogether],
    measuring: Measuring,
    describe: Callable[[str, str], str] = lambda _window, _what: "",
    after_first: Callable[[MeasuredTogether], None] = lambda _: None,
    window_s: float = 0.0,
) -> None:
    """Measures window 1 of each set of workloads, then window 2 of each: drift affects all alike.

    A set has the workloads that are measured at the same time, usually one.

    1. Each set gets the windows that `measuring` asks for. Windows that the measurer already has
       count.
    2. While not all step times are known within ± 1 %, each set gets one more window, up to
       `max_windows`. It gets none if even `max_windows` would probably leave a step time less exact
       than `measuring.hopeless`, or if all windows took longer than `measuring.patience_s`. Windows
       of `duration_s` seconds follow the same rule; only the message that all step times are known
       is left out.
    3. Then each set gets one more window, once, if a GPU was throttled while it trained a workload
       that is no baseline.

    `describe("window 2 of 3", "GPU:0 alone")` returns the text to report; a window beyond the
    planned ones is "window 4, beyond the planned 3". `after_first` is called with each set after
    its first window, and raises if nothing more should be measured. `window_s` is about what a
    window takes, if that is known.
    """
    # An earlier call that ended with an error may have measured more windows than asked for. Then
    # these are the planned windows.
    planned = max(measuring.windows, *map(measurer.window_count, interleaved))
    repeated_for_throttling = False
    while True:
        windows_so_far = min(map(measurer.window_count, interleaved))
        if windows_so_far >= planned:
            half_width = _widest_half_width(measurer, interleaved)
            # Whoever asks for windows of `duration_s` seconds has not asked for a precision, and
            # hears nothing of it.
            if half_width <= PRECISE_ENOUGH and measuring.duration_s is None:
                known_after = f"{_KNOWN} after {windows_so_far} measurement windows"
                measurer.watch(Doing(known_after))
            reason = None
            if windows_so_far * sum(measurer.took_s.values()) <= measuring.patience_s:
                reason = _reason_if_imprecise(half_width, windows_so_far, measuring)
            if reason is None and not repeated_for_throttling:
                reason = _reason_if_throttled(measurer, interleaved)
                repeated_for_throttling = reason is not None
            if reason is None:
                return
            measurer.watch(Doing(reason))
        number = windows_so_far + 1
        _measure_each(
            measurer,
            interleaved,
            measuring,
            number,
            planned,
            describe,
            after_first,
            window_s,
        )


def _measure_each(
    measurer: Measurer,
    interleaved: Sequence[MeasuredTogether],
    measuring: Measuring,
    number: int,
    planned: int,
    describe: Callable[[str, str], str],
    after_first: Callable[[MeasuredTogether], None],
    window_s: float,
) -> None:
    """Measures window `number`, from 1, of each set that does not have this window yet.

    `planned` is the number of windows that were asked for, or of those that an earlier call
    measured, if these are more.
    """

    def tell_time_left() -> None:
        left_s = _expected_s(measurer, interleaved, measuring, planned, window_s)
        measurer.watch(TimeLeft(left_s))

    rule = StoppingRule.of_window(measuring)
    # The order is reversed each time: as a card gets hotter, the last set is slower.
    in_order = list(interleaved)
    if number % 2 == 0:
        in_order.reverse()
    for workloads in in_order:
        if measurer.window_count(workloads) >= number:
            continue
        tell_time_left()
        text = describe(window_place(number, planned), label_of(workloads))
        measurer.take(workloads, rule, number, text)
        measurer.watch(_event(measurer, workloads, number, planned))
        if number == 1:
            after_first(workloads)
    tell_time_left()


def _expected_s(
    measurer: Measurer,
    interleaved: Sequence[MeasuredTogether],
    measuring: Measuring,
    planned: int,
    window_s: float,
) -> float:
    """The seconds of all windows that are probably left.

    A window takes as long as the last one of its set that was measured. The first one takes as long
    as the longest of other sets, or as the step time of its warm-up lets expect.
    """
    rule = StoppingRule.of_window(measuring)
    complete = min(map(measurer.window_count, interleaved))
    in_all = planned
    if complete:
        half_width = _widest_half_width(measurer, interleaved)
        in_all = max(planned, _windows_in_all(half_width, complete, measuring))
    longest_s = max([window_s, *measurer.took_s.values()])
    left_s = 0.0
    for workloads in interleaved:
        step_s = max(measurer.warm_up_of(workload).step_s for workload in workloads)
        expected_s = max(longest_s, expected_window_s(rule, step_s))
        windows_left = max(0, in_all - measurer.window_count(workloads))
        left_s += windows_left * measurer.took_s.get(workloads, expected_s)
    return left_s


def expected_run_s(
    measuring: Measuring, step_s: float, noise: float, splits: int
) -> tuple[float, float]:
    """About how long a warm split and its baselines are measured, and how long each window takes.

    `noise` is that of `StoppingRule.expected_s`, `splits` how many are measured interleaved.
    """
    rule = StoppingRule.of_window(measuring)
    window_s = expected_window_s(rule, step_s, noise)
    timings = rule.expected_s(step_s, noise=noise) / max(rule.timing_s, step_s)
    half_width = _MORE_IN_WINDOWS * noise / math.sqrt(measuring.windows * timings)
    windows = _windows_in_all(half_width, measuring.windows, measuring)
    if splits == 1:
        return windows * window_s, window_s
    window_s += _STEPS_TO_CHANGE * step_s
    if splits * measuring.windows * window_s > measuring.patience_s:
        windows = measuring.windows
    settling_s = SETTLING_STEPS * step_s  # of the other split
    return settling_s + splits * windows * window_s, window_s


def _windows_in_all(half_width: float, windows: int, measuring: Measuring) -> int:
    """How many windows will probably be measured, if the half-width is this after `windows`."""
    if half_width <= PRECISE_ENOUGH:
        return windows
    if not _can_become_precise(half_width, windows, measuring):
        return windows
    if math.isinf(half_width):  # nothing is known yet
        return windows + 1
    # Not rounded up: with few timings the interval narrows faster than with 1/√n.
    needed = round(windows * (half_width / PRECISE_ENOUGH) ** 2)
    return min(max(windows + 1, needed), measuring.max_windows)


def _widest_half_width(
    measurer: Measurer, interleaved: Sequence[MeasuredTogether]
) -> float:
    """The widest half-width of all workloads' step times: 0.01 for ± 1 %, infinite if unknown."""
    widest = 0.0
    for workloads in interleaved:
        for workload in workloads:
            widest = max(widest, precision(measurer.windows[workload]))
    return widest


def _reason_if_imprecise(
    half_width: float, windows: int, measuring: Measuring
) -> str | None:
    """Why one more window is measured, if it may make step times precise; else None."""
    if half_width <= PRECISE_ENOUGH:
        return None
    if not _can_become_precise(half_width, windows, measuring):
        return None
    return f"not yet {_KNOWN}: one more window"


def _can_become_precise(half_width: float, windows: int, measuring: Measuring) -> bool:
    """Whether `max_windows` may come near ± 1 %, if the half-width is this after `windows`.

    The half-width shrinks with the root of the number of windows: ± 10 % after 3 would be
    10 · √(3/5) = ± 7.7 % after 5. That is above the 6 % of `Measuring.hopeless`, so no more time is
    spent.
    """
    if windows >= measuring.max_windows:
        return False
    if math.isinf(half_width):  # nothing is known yet
        return True
    after_all = half_width * math.sqrt(windows / measuring.max_windows)
    return after_all <= measuring.hopeless


def _reason_if_throttled(
    measurer: Measurer, interleaved: Sequence[MeasuredTogether]
) -> str | None:
    """Why one more window is measured, if a GPU was throttled; else None. Baselines don't count."""
    throttled: list[tuple[Device, tuple[str, ...]]] = []
    for workloads in interleaved:
        for workload in workloads:
            if not workload.is_baseline:
                throttled += throttled_gpus(
                    workload.devices, measurer.windows[workload]
                )
    if not throttled:
        return None
    return f"{throttled_text(throttled)}: measuring once more"


def _event(
    measurer: Measurer, workloads: MeasuredTogether, number: int, planned: int
) -> Event:
    """The event for the latest window of each of these workloads."""
    workload = workloads[0]
    # A model cut over devices: rate and step time are those of all its windows so far.
    if workload.cut is not None:
        windows = measurer.windows[workload]
        rate = throughput_of(workload.split.global_batch, step_times_s(windows))
        return PipeWindowDone(number, planned, rate.median, median_step_s(windows))
    # Independent models, one alone or all at once.
    if workload.is_independent:
        parts = tuple(_own_window(measurer, workload) for workload in workloads)
        name = "alone" if len(workloads) == 1 else "at once"
        devices = tuple(part.device for part in parts)
        return WindowDone(number, planned, name, devices, parts)
    # A run's split, on held batches too, or the even split beside it.
    last = measurer.windows[workload][-1:]
    measured = measurement(workload.split, last, measurer.sensors(workload))
    return WindowDone(number, planned, workload.name, workload.devices, measured)


def _own_window(measurer: Measurer, workload: Workload) -> OwnWindow:
    """The result of the last window of one device that trains an independent model."""
    last = measurer.windows[workload][-1:]
    origin_s = began_s(last)  # the times of the result's samples count from here
    own_step_time = step_time(last, origin_s)
    batch = workload.split.global_batch
    return OwnWindow(
        device=workload.devices[0],
        batch=batch,
        step_time_s=own_step_time,
        throughput=throughput_of(batch, step_times_s(last)),
        memory_peak_bytes=peaks(last)[0],
        telemetry=measurer.sensors(workload).telemetry(origin_s)[0],
    )


def label_of(workloads: MeasuredTogether) -> str:
    """`GPU:0 alone`, or `all 2 devices at once`.

    In both examples the models are independent: their workloads are named `alone` and `at once`.
    """
    first = workloads[0]
    if len(workloads) > 1:
        return f"all {len(workloads)} devices {first.name}"
    labels = " and ".join(device.label for device in first.devices)
    return f"{labels} {first.name}"
