"""Measures subjects in turns, and decides whether to go on."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from gpubalance.jobs.events import Doing, Event, PipeWindowDone, TimeLeft, TurnDone, WindowDone
from gpubalance.jobs.measure.figures import (
    Slowed,
    began_s,
    peaks,
    precision,
    slowed,
    step_time,
    step_times_s,
    throughput_of,
    usual_s,
)
from gpubalance.jobs.measure.measurement import measurement
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.stopping import HOPELESS, PRECISE_ENOUGH, StoppingRule
from gpubalance.jobs.measure.subject import Subject, Turn
from gpubalance.jobs.measure.warnings import slowed_text
from gpubalance.numbers.units import format_percent
from gpubalance.results.independent import OwnWindow
from gpubalance.settings.device import Device
from gpubalance.settings.measuring import Measuring


def in_turns(measurer: Measurer, turns: Sequence[Turn], measuring: Measuring, doing: str) -> None:
    """Measures a window in each of the turns again and again, so that a drift affects all alike.

    Windows that the measurer has already count. After those that `measuring` asks for more follow
    until all are known within ± 1 %, if as many as it allows can come near, and one after a GPU was
    throttled. `doing` is what to tell, with `{window}` and `{what}` in braces.
    """
    count = max(measuring.windows, *_counts(measurer, turns))
    is_once_more = False
    while True:
        number = 1 + min(_counts(measurer, turns))
        if number > count:
            why = _why_more(measurer, turns, count, measuring)
            throttled = _slowed(measurer, turns)
            if why is None and throttled and not is_once_more:
                is_once_more = True
                why = f"{slowed_text(throttled)}: measuring once more"
            if why is None:
                return
            measurer.watch(Doing(why))
            count = number
        _measure_each(measurer, turns, measuring, number, count, doing)


def _measure_each(
    measurer: Measurer,
    turns: Sequence[Turn],
    measuring: Measuring,
    number: int,
    count: int,
    doing: str,
) -> None:
    """Measures the window of that number in each turn that does not have it yet."""
    began_s = time.monotonic()
    rule = StoppingRule.of_window(measuring)
    # They alternate in going first: as a card gets hotter, the last one is always a little slower.
    for turn in turns if number % 2 else reversed(turns):
        if len(measurer.windows[turn[0]]) < number:
            text = doing.format(window=f"window {number} of {count}", what=_what(turn))
            measurer.take(turn, rule, number, text)
            measurer.watch(_event(measurer, turn, number, count))
    measurer.watch(TimeLeft((count - number) * (time.monotonic() - began_s)))


def _why_more(
    measurer: Measurer, turns: Sequence[Turn], count: int, measuring: Measuring
) -> str | None:
    """Why one more window is worth its time, None if it is not. Tells what is known precisely."""
    subjects = [subject for turn in turns for subject in turn]
    half_width = max(precision(measurer.windows[subject]) for subject in subjects)
    known = f"known within ± {format_percent(PRECISE_ENOUGH)} (95 %)"
    if half_width <= PRECISE_ENOUGH:
        if measuring.duration_s is None:
            measurer.watch(Doing(f"{known} after {count} windows"))
        return None
    if not _can_settle(half_width, count, measuring.max_windows):
        return None
    return f"not yet {known}: one more window"


def _event(measurer: Measurer, turn: Turn, number: int, of: int) -> Event:
    """The event of a turn's latest windows."""
    subject = turn[0]
    if subject.cut is not None:
        windows = measurer.windows[subject]
        rate = throughput_of(subject.split.global_batch, step_times_s(windows))
        return PipeWindowDone(number, of, rate.median, usual_s(windows))
    if subject.name in ("alone", "at once"):
        parts = tuple(_own_window(measurer, subject) for subject in turn)
        return TurnDone(number, of, "alone" if len(turn) == 1 else "at once", parts)
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
        throughput=throughput_of(batch, own_time.samples),
        memory_peak_bytes=peaks(last)[0],
        telemetry=measurer.sensors(subject).telemetry(origin_s)[0],
    )


def _counts(measurer: Measurer, turns: Sequence[Turn]) -> list[int]:
    """How many windows there are of each turn."""
    return [len(measurer.windows[turn[0]]) for turn in turns]


def _slowed(measurer: Measurer, turns: Sequence[Turn]) -> Slowed:
    """Each GPU that was throttled, but for what others are only compared with."""
    found: list[tuple[Device, tuple[str, ...]]] = []
    for turn in turns:
        for subject in turn:
            if not subject.is_baseline:
                found += slowed(subject.devices, measurer.windows[subject])
    return found


def _what(turn: Turn) -> str:
    """`GPU:0 alone`, or `all 2 devices at once`."""
    first = turn[0]
    if len(turn) > 1:
        return f"all {len(turn)} devices {first.name}"
    return f"{' and '.join(device.label for device in first.devices)} {first.name}"


def _can_settle(known: float, windows: int, most: int) -> bool:
    """Whether `most` windows could come near, if `windows` tell a step time within ± `known`."""
    if windows >= most:
        return False
    return math.isinf(known) or known * math.sqrt(windows / most) <= HOPELESS
