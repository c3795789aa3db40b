"""What answers at once, or, where a driver or a network drive hangs, never."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from gpubalance.errors import DeadlinePassed

T = TypeVar("T")
ANSWERS_WITHIN_S = 20.0


def within(work: Callable[[], T], seconds: float = ANSWERS_WITHIN_S) -> T:
    """What `work` gives or raises. Raises DeadlinePassed when it takes longer; it is left behind then."""
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:  # noqa: BLE001  (raised again where it is waited for)
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)  # or one that hangs would hold up the end of the process
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise DeadlinePassed(f"no answer within {seconds:.0f} s")
    return results[0]


def within_or(otherwise: T, work: Callable[[], T]) -> T:
    """The same, or the other where it takes longer."""
    try:
        return within(work)
    except DeadlinePassed:
        return otherwise
