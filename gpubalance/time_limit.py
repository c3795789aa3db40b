"""The time that a whole command may take."""

from __future__ import annotations

import math
import time

from gpubalance.errors import TimeLimitPassed


class TimeLimit:
    """Begins when it is made. `until_s` is its end on the monotonic clock; infinite without `seconds`."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self.until_s = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds until its end, 0 after it."""
        return max(0.0, self.until_s - time.monotonic())

    def check(self) -> None:
        """Raises TimeLimitPassed after its end."""
        if not self.left_s:
            raise TimeLimitPassed(
                f"the time limit of {self._seconds:g} s passed", remedy="give it more: --time-limit SECONDS"
            )


NO_LIMIT = TimeLimit()
