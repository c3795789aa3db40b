"""What ends a probe before it is finished."""

from __future__ import annotations

import threading

from gpubalance.errors import Interrupted
from gpubalance.system.deadlines import TimeLimit


class Halt:
    """Ends all threads of a probe at its time limit, or when the main thread is interrupted."""

    def __init__(self, limit: TimeLimit) -> None:
        self.limit = limit
        self.interrupted = threading.Event()

    def check(self) -> None:
        """Raises Interrupted or TimeLimitPassed."""
        if self.interrupted.is_set():
            raise Interrupted(2)
        self.limit.check()
