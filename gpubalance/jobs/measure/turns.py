"""Measures subjects in turns, and decides whether to go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

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
from gpubalance.jobs.measure.measurement import measurement
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.stopping import HOPELESS, PRECISE_ENOUGH, StoppingRule
from gpubalance.jobs.measure.subject import Subject, Turn
from gpubalance.jobs.measure.warnings import throttled_text
from gpubalance.numbers.units import format_percent
from gpubalance.results.independent import OwnWindow
from gpubalance.settings.device import Device
from gpubalance.settings.measuring import Measuring, window_place

_KNOWN = f"known within ± {format_percent(PRECISE_ENOUGH)} (95 %)"


def in_turns(
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
            # With `duration_s` as many windows are measured as were asked for, whatever they tell.
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
        step_s = max(measurer.warm_up_of(subject).step_s for subject in turn)
        windows = planned - measurer.window_count(turn)
        left_s += windows * rule.expected_s(step_s)
    return left_s


def _half_width(measurer: Measurer, turns: Sequence[Turn]) -> float:
    """That of the least known subject, as a part of its step time; infinite if unknown."""
    subjects = [subject for turn in turns for subject in turn]
    return max(precision(measurer.windows[subject]) for subject in subjects)


def _why_more(half_width: float, windows: int, most: int) -> str | None:
    """Why one more window is worth its time, None if it is not."""
    if half_width <= PRECISE_ENOUGH or not _can_become_precise(
        half_width, windows, most
    ):
        return None
    return f"not yet {_KNOWN}: one more window"


def _event(measurer: Measurer, turn: Turn, number: int, of: int) -> Event:
    """The event of a turn's latest windows."""
    subject, *_ = turn
    if subject.cut is not None:
        windows = measurer.windows[subject]
        rate = throughput_of(subject.split.global_batch, step_times_s(windows))
        return PipeWindowDone(number, of, rate.median, usual_s(windows))
    if subject.is_independent:
        parts = tuple(_own_window(measurer, subject) for subject in turn)
        if len(turn) == 1:
            return TurnDone(number, of, "alone", parts)
        return TurnDone(number, of, "at once", parts)
    last = measurer.windows[subject][-1:]
    measured = measurement(subject.split, last, measurer.sensors(subject))
    return WindowDone(number, of, subject.name, subject.devices, measured)


def _own_window(measurer: Measurer, subject: Subject) -> OwnWindow:
    """What the last window of a model of its own gave."""
    last = measurer.windows[subject][-1:]
    origin_s = began_s(last)
    own_time = step_time(last, origin_s)
    batch = subject.split.global_batch
    return OwnWindow(
        device=subject.devices[0],
        batch=batch,
        step_time_s=own_time,
        throughput=throughput_of(batch, step_times_s(last)),
        memory_peak_bytes=peaks(last)[0],
        telemetry=measurer.sensors(subject).telemetry(origin_s)[0],
    )


def _throttled(measurer: Measurer, turns: Sequence[Turn]) -> Throttled:
    """Each GPU that was throttled, except those of baselines."""
    throttled: list[tuple[Device, tuple[str, ...]]] = []
    for turn in turns:
        for subject in turn:
            if not subject.is_baseline:
                throttled += throttled_gpus(subject.devices, measurer.windows[subject])
    return throttled


def _what(turn: Turn) -> str:
    """`GPU:0 alone`, or `all 2 devices at once`."""
    first = turn[0]
    if len(turn) > 1:
        return f"all {len(turn)} devices {first.name}"
    return f"{' and '.join(device.label for device in first.devices)} {first.name}"


def _can_become_precise(half_width: float, windows: int, most: int) -> bool:
    """Whether `most` windows could come near, if `windows` of them leave that half-width."""
    if windows >= most:
        return False
    if math.isinf(half_width):  # nothing is known yet
        return True
    return half_width * math.sqrt(windows / most) <= HOPELESS
