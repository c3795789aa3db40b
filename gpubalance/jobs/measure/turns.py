"""Measures subjects in turns, and decides whether to go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from gpubalance.jobs.events import Doing, TimeLeft, Watch
from gpubalance.jobs.measure.warnings import HOPELESS, PRECISE_ENOUGH, Slowed, slowed_text
from gpubalance.numbers.units import format_percent
from gpubalance.settings.measuring import Measuring


class Subject(Protocol):
    """What is measured: its windows so far, and how exactly they tell its step time."""

    windows: list[Any]

    @property
    def precision(self) -> float: ...


S = TypeVar("S", bound=Subject)


def in_turns(
    subjects: Callable[[], Sequence[S]],
    turn: Callable[[S, int, int], None],
    measuring: Measuring,
    slowed: Callable[[], Slowed],
    watch: Watch,
) -> None:
    """Measures windows of each subject in turns, so that a drifting machine affects all alike.

    `turn` measures a subject's window of that number, of so many; it may drop a subject, so
    `subjects` is asked again before each. More windows follow until all are known within ± 1 %, if
    those that `measuring` allows can come near, and one after a GPU was throttled.
    """
    of, was_slowed = measuring.windows, False
    while there := subjects():
        number = 1 + min(len(one.windows) for one in there)
        if number > of:
            known = max(one.precision for one in there)
            within = f"known within ± {format_percent(PRECISE_ENOUGH)} (95 %)"
            if known <= PRECISE_ENOUGH and measuring.duration_s is None:
                watch(Doing(f"{within} after {of} windows"))
            if known > PRECISE_ENOUGH and _can_settle(known, of, measuring.max_windows):
                watch(Doing(f"not yet {within}: one more window"))
            elif slowed() and not was_slowed:
                was_slowed = True
                watch(Doing(f"{slowed_text(slowed())}: measuring once more"))
            else:
                return
            of = number
        began_s = time.monotonic()
        # They alternate in going first: as a card gets hotter, the last one is always a little
        # slower.
        for one in there if number % 2 else reversed(there):
            if len(one.windows) < number and one in subjects():
                turn(one, number, of)
        watch(TimeLeft((of - number) * (time.monotonic() - began_s)))


def _can_settle(known: float, windows: int, most: int) -> bool:
    """Whether `most` windows could come near to it, if so many tell a step time within ± `known`;
    inf if unknown.
    """
    return windows < most and (math.isinf(known) or known * math.sqrt(windows / most) <= HOPELESS)
