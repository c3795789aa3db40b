"""Which timings count of those that several workers give at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.results.timing import Timing


class CommonWindow:
    """Begins when each worker has given its first timing, ends when each has given enough.

    Only this process's clock says when a timing arrives. A timing counts if the one before it
    arrived after the common begin, so that it began after that too, and if it arrives before the
    common end: then every device trained all the while. Each worker's thread shares the window.
    """

    def __init__(self, numbers: Sequence[int], rule: StoppingRule) -> None:
        """The window ends when the rule is content with what counts of each worker."""
        self.counted: dict[int, list[Timing]] = {number: [] for number in numbers}
        self.overlap_s = 0.0
        self._rule = rule
        self._lock = threading.Lock()
        self._came_s: dict[int, float] = {}
        self._moves: dict[int, bool] = {}
        self._began_s: float | None = None
        self._is_over = False

    def take(self, number: int, timing: Timing, *, moves: bool = False) -> None:
        """Takes a worker's timing that has just arrived; its GPU's clock or temperature `moves`."""
        with self._lock:
            now_s = time.monotonic()
            before_s = self._came_s.get(number)
            self._came_s[number] = now_s
            self._moves[number] = moves
            if self._is_over:
                return
            if self._began_s is None:
                self._began_s = (
                    now_s if len(self._came_s) == len(self.counted) else None
                )
                return
            if before_s is not None and before_s >= self._began_s:
                self.counted[number].append(timing)
            if self._have_enough():
                self._is_over = True
                self.overlap_s = now_s - self._began_s

    def _have_enough(self) -> bool:
        """Whether what counts of each worker is enough."""
        for number, timings in self.counted.items():
            if not self._rule.is_reached(timings, moves=self._moves[number]):
                return False
        return True

    def is_over(self) -> bool:
        """Whether the window has ended: no timing that arrives from now on counts."""
        return self._is_over

    def leave(self) -> None:
        """Ends the window after a worker has failed; what the others measured is worthless."""
        with self._lock:
            self._is_over = True
