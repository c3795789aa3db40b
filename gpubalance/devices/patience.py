"""NVML answers at once, or, where a driver hangs, never."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
ANSWERS_WITHIN_S = 20.0


def within(ask: Callable[[], T], otherwise: T, seconds: float = ANSWERS_WITHIN_S) -> T:
    """What `ask` gives, or the other where that takes longer: it is left behind then. `ask` raises nothing."""
    answers: list[T] = []
    # A daemon, or one call that hangs would hold up the end of the process
    thread = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else otherwise
