"""Measures workloads interleaved, window by window, until their step times are precise.

`JointRun` does so with a split and its baseline, the even split. `InterleavedWindows` also measures
independent models, one a device (jobs/independent), and cut models (jobs/layers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.events import Doing, Event, PipeWindowDone, TimeLeft, WindowDone
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
from gpubalance.numbers.units import DurationRange, format_percent
from gpubalance.results.independent import OwnWindow
from gpubalance.results.run import SoloBest
from gpubalance.results.warnings import warning
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.settings.measuring import EVEN_SPLIT, Measuring, window_place
from gpubalance.settings.requests import RunRequest

# The most noise if it is unknown: with so much a window takes as long as it may.
_MAX_NOISE = 1.0
# A window after one of another split takes longer by this many steps, at most by twice as many:
# measured on two fake GPUs.
_STEPS_TO_CHANGE = 3
_KNOWN = f"known within ± {format_percent(PRECISE_ENOUGH)} (95 %)"


class JointRun:
    """Measures the split of a run, and the even split beside it if `--baseline even` asks for it.

    `state` has up to three workloads: `own`, the run's own split; `even`, the even split; and
    `held`, the own split on batches that stay on the devices, if the batches of `own` come from the
    user's input pipeline. `state.result()` gives the result so far, None before the first window.
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
        """Measures to the end.

        Raises OutOfMemory if the run's own split does not fit, and UsageError if it is too slow.
        """
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
        InterleavedWindows(
            self.measurer,
            interleaved,
            self.request.measuring,
            describe,
            self._refuse_if_too_slow,
            self._window_s,
        ).measure()

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


class InterleavedWindows:
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
    """

    def __init__(
        self,
        measurer: Measurer,
        sets: Sequence[MeasuredTogether],
        measuring: Measuring,
        describe: Callable[[str, str], str] = lambda _window, _what: "",
        after_first: Callable[[MeasuredTogether], None] = lambda _: None,
        window_s: float = 0.0,
    ) -> None:
        """Measures nothing yet.

        describe     of `("window 2 of 3", "GPU:0 alone")` it makes the text to report; a window
                     beyond the planned ones is "window 4, beyond the planned 3"
        after_first  called with each set after its first window; raises if nothing more should be
                     measured
        window_s     about what a window takes, if that is known
        """
        self._measurer = measurer
        self._sets = sets
        self._measuring = measuring
        self._describe = describe
        self._after_first = after_first
        self._window_s = window_s
        # An earlier measurement that ended with an error may have measured more windows than asked
        # for. Then these are the planned windows.
        self._planned = max(measuring.windows, *map(measurer.window_count, sets))

    def measure(self) -> None:
        """Measures to the end."""
        measurer = self._measurer
        repeated_for_throttling = False
        while True:
            complete = self._complete_windows
            if complete >= self._planned:
                half_width = _widest_half_width(measurer, self._sets)
                # Whoever asks for windows of `duration_s` seconds has not asked for a precision,
                # and hears nothing of it.
                if half_width <= PRECISE_ENOUGH and self._measuring.duration_s is None:
                    windows = f"{complete} measurement windows"
                    if complete == 1:
                        windows = "a measurement window"
                    known_after = f"{_KNOWN} after {windows}"
                    measurer.watch(Doing(known_after))
                reason = self._reason_if_imprecise(complete)
                if reason is None and not repeated_for_throttling:
                    reason = _reason_if_throttled(measurer, self._sets)
                    repeated_for_throttling = reason is not None
                if reason is None:
                    return
                measurer.watch(Doing(reason))
            self._measure_each(complete + 1)

    @property
    def _complete_windows(self) -> int:
        """How many windows all sets have."""
        return min(map(self._measurer.window_count, self._sets))

    def _measure_each(self, number: int) -> None:
        """Measures window `number`, from 1, of each set that does not have this window yet."""
        measurer = self._measurer
        rule = StoppingRule.of_window(self._measuring)
        # Every second window comes in reverse order: as cards get hotter, the last set is slower.
        in_order = list(self._sets)
        if number % 2 == 0:
            in_order.reverse()
        for workloads in in_order:
            if measurer.window_count(workloads) >= number:
                continue
            measurer.watch(self._time_left(number))
            place = window_place(number, self._planned)
            text = self._describe(place, label_of(workloads))
            measurer.measure_kept(workloads, rule, number, text)
            measurer.watch(_event(measurer, workloads, number, self._planned))
            if number == 1:
                self._after_first(workloads)
        left = self._time_left(number)
        # With 0 s left this phase, which is not over yet, would be called late.
        if left.duration.least_s > 0:
            measurer.watch(left)

    def _time_left(self, number: int) -> TimeLeft:
        """How long all missing windows take, while window `number` is measured.

        At least the planned ones are missing. At most those that may follow are too, each as long
        as the longest set's: a window takes longer after one of another set.
        """
        seconds = self._seconds_of_windows()
        least = most = max(self._planned, number)
        complete = self._complete_windows
        if complete < least:
            most = max(least, self._measuring.most_windows(sum(seconds.values())))
        elif self._reason_if_imprecise(complete) is not None:
            least = complete + 1
            most = self._measuring.most_windows(sum(seconds.values()))
        least_s = most_s = 0.0
        for workloads, window_s in seconds.items():
            count = self._measurer.window_count(workloads)
            least_s += max(0, least - count) * window_s
            most_s += max(0, most - count) * max(seconds.values())
        return TimeLeft(DurationRange(least_s, most_s))

    def _seconds_of_windows(self) -> dict[MeasuredTogether, float]:
        """About what a window of each set takes.

        It takes as long as the set's last one. For a first one this is the largest of what other
        sets' windows took, what the caller expects, and what the warm-up's step time predicts.
        """
        measurer = self._measurer
        rule = StoppingRule.of_window(self._measuring)
        longest_s = max([self._window_s, *measurer.took_s.values()])
        seconds = {}
        for workloads in self._sets:
            step_s = max(measurer.warm_up_of(workload).step_s for workload in workloads)
            expected_s = max(longest_s, expected_window_s(rule, step_s))
            seconds[workloads] = measurer.took_s.get(workloads, expected_s)
        return seconds

    def _reason_if_imprecise(self, windows: int) -> str | None:
        """Why one more window follows these; None if it isn't needed or would not help."""
        half_width = _widest_half_width(self._measurer, self._sets)
        if half_width <= PRECISE_ENOUGH:
            return None
        if windows >= self._measuring.most_windows(sum(self._measurer.took_s.values())):
            return None
        if not _can_become_precise(half_width, windows, self._measuring):
            return None
        return f"not yet {_KNOWN}: one more window"


class ExpectedRun(NamedTuple):
    """About how long a run takes."""

    duration: DurationRange
    window_s: float  # of a window that takes no longer than it must


def expected_run(
    measuring: Measuring, step_s: float, noise: float | None, splits: int
) -> ExpectedRun:
    """About how long a warm split and its baselines are measured.

    `noise` is that of `StoppingRule.expected_s`, None if it is unknown. `splits` is how many are
    measured interleaved.
    """
    rule = StoppingRule.of_window(measuring)
    change_s = settling_s = 0.0
    if splits > 1:
        change_s = _STEPS_TO_CHANGE * step_s
        settling_s = SETTLING_STEPS * step_s  # of the other split
    window_s = change_s + expected_window_s(rule, step_s, noise or 0.0)
    max_noise = _MAX_NOISE if noise is None else noise
    longest_s = 2 * change_s + expected_window_s(rule, step_s, max_noise)
    least_s = settling_s + measuring.windows * splits * window_s
    most_windows = measuring.most_windows(splits * longest_s)
    most_s = settling_s + most_windows * splits * longest_s
    return ExpectedRun(DurationRange(least_s, most_s), window_s)


def _widest_half_width(
    measurer: Measurer, interleaved: Sequence[MeasuredTogether]
) -> float:
    """The widest half-width of all workloads' step times: 0.01 for ± 1 %, infinite if unknown."""
    widest = 0.0
    for workloads in interleaved:
        for workload in workloads:
            widest = max(widest, precision(measurer.windows[workload]))
    return widest


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
