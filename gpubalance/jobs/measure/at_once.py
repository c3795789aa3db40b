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

    def __init__(self, groups: Sequence[int], rule: StoppingRule) -> None:
        """The window ends when the rule is content with what counts of each group's worker."""
        self.counted: dict[int, list[Timing]] = {group: [] for group in groups}
        self.overlap_s = 0.0
        self._rule = rule
        self._lock = threading.Lock()
        self._came_s: dict[int, float] = {}
        self._gpu_is_changing: dict[int, bool] = {}
        self._began_s: float | None = None
        self._is_over = False

    def add(self, group: int, timing: Timing, *, gpu_is_changing: bool = False) -> None:
        """Adds a worker's timing that has just arrived, and what its sensors say of its GPU."""
        with self._lock:
            now_s = time.monotonic()
            before_s = self._came_s.get(group)
            self._came_s[group] = now_s
            self._gpu_is_changing[group] = gpu_is_changing
            if self._is_over:
                return
            if self._began_s is None:
                self._began_s = (
                    now_s if len(self._came_s) == len(self.counted) else None
                )
                return
            if before_s is not None and before_s >= self._began_s:
                self.counted[group].append(timing)
            if self._have_enough():
                self._is_over = True
                self.overlap_s = now_s - self._began_s

    def _have_enough(self) -> bool:
        """Whether what counts of each worker is enough."""
        for group, timings in self.counted.items():
            if not self._rule.is_reached(
                timings, gpu_is_changing=self._gpu_is_changing[group]
            ):
                return False
        return True

    def is_over(self) -> bool:
        """Whether the window has ended: no timing that arrives from now on counts."""
        return self._is_over

    def end(self) -> None:
        """Ends the window after a worker has failed; what the others measured is worthless."""
        with self._lock:
            self._is_over = True
