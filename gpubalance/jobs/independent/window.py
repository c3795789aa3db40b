"""A window in which several workers measure at once: what of their timings counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from gpubalance.results.timing import Timing


class CommonWindow:
    """From when each worker has given its first timing, to when each has given enough that counts.

    When a timing comes is read on this process's clock, whatever the workers' own say. A timing counts where the one
    before it came after the common begin, so that it began after it too, and where it comes before the common end: then
    every device trained for all of its time. Threads share a window, a worker each.
    """

    def __init__(self, numbers: Sequence[int], *, seconds: float, at_least: int) -> None:
        """Over when each has so many timings that count, which together took so long."""
        self.counted: dict[int, list[Timing]] = {number: [] for number in numbers}
        self.overlap_s = 0.0
        self._seconds = seconds
        self._at_least = at_least
        self._lock = threading.Lock()
        self._came_s: dict[int, float] = {}
        self._began_s: float | None = None
        self._is_over = False

    def take(self, number: int, timing: Timing) -> None:
        """A worker's timing has just come."""
        with self._lock:
            now_s, before_s = time.monotonic(), self._came_s.get(number)
            self._came_s[number] = now_s
            if self._is_over:
                return
            if self._began_s is None:
                self._began_s = now_s if len(self._came_s) == len(self.counted) else None
                return
            if before_s is not None and before_s >= self._began_s:
                self.counted[number].append(timing)
            if all(map(self._is_enough, self.counted.values())):
                self._is_over, self.overlap_s = True, now_s - self._began_s

    def _is_enough(self, timings: Sequence[Timing]) -> bool:
        return len(timings) >= self._at_least and sum(one.seconds for one in timings) >= self._seconds

    def is_over(self) -> bool:
        """Whether nothing that comes from now on counts."""
        return self._is_over

    def leave(self) -> None:
        """A worker has failed: the window ends here, and what the others measured in it is worth nothing."""
        with self._lock:
            self._is_over = True
