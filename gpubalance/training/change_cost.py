"""What a change of the split costs, and the steps over which the next one can save as much."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from gpubalance.numbers.stats import median

_RECENT = 9  # steps that tell how long the host takes for one


class ChangeCost:
    """How much longer than others the first steps of the present split took, by the host's clock.

    Those wait for a function of its sizes to be traced, optimised or compiled, and for cuDNN's
    search. `seconds` is 0 before a change.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._usual_s: deque[float] = deque(maxlen=_RECENT)
        self._counts = False

    def begin(self) -> None:
        """Begins another training: its first steps are those of no change."""
        self._counts = False
        self._usual_s.clear()

    def begin_split(self) -> None:
        """Begins a split that was changed."""
        self._counts = True
        self.seconds = 0.0

    def note(self, took_s: float, *, is_first: bool) -> None:
        """Takes a step: `is_first` of its kind with these sizes."""
        if not is_first:
            self._usual_s.append(took_s)
        elif self._counts and self._usual_s:
            self.seconds += max(0.0, took_s - median(self._usual_s))


class StepsLeft:
    """Counts the steps that are left in a `fit`: of its epochs' known length, or of the first's."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begins a `fit`."""
        self._number = self._before_epoch = self._epoch = 0
        self._of_epoch: int | None = None

    def begin_after(self, number: int) -> None:
        """Begins with the step after the one of that number."""
        self._number = self._before_epoch = number

    def begin_epoch(self, epoch: int) -> None:
        """Begins an epoch, counted from 0."""
        self._epoch = epoch
        self._before_epoch = self._number

    def note(self, number: int) -> None:
        """Takes a step by its number."""
        self._number = number

    def end_epoch(self) -> None:
        """Notes how long an epoch is."""
        self._of_epoch = self._number - self._before_epoch

    def left(self, params: Mapping[str, Any]) -> int | None:
        """The steps that come after the last one, by a callback's `params`; None if unknown."""
        of_epoch: int | None = params["steps"] or self._of_epoch
        if of_epoch is None:
            return None
        epochs: int = params["epochs"] - self._epoch  # with the present one
        return max(0, epochs * of_epoch - (self._number - self._before_epoch))
