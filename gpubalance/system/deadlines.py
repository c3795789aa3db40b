"""Deadlines: of a whole command, and of one call that may hang, as into a driver."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import TypeVar

from gpubalance.errors import DeadlinePassed, TimeLimitPassed

T = TypeVar("T")
ANSWERS_WITHIN_S = 20.0


def within(work: Callable[[], T], seconds: float = ANSWERS_WITHIN_S) -> T:
    """Returns or raises what `work` does.

    If it takes longer, raises DeadlinePassed and leaves it running.
    """
    answer = Future[T]()

    def run() -> None:
        try:
            answer.set_result(work())
        except Exception as error:  # noqa: BLE001  (raised again in the thread that waits)
            answer.set_exception(error)

    # A daemon: a hung call must not hold up the process's end
    threading.Thread(target=run, daemon=True).start()
    if not wait([answer], seconds).done:
        raise DeadlinePassed(f"no answer within {seconds:.0f} s")
    return answer.result()


def within_or(otherwise: T, work: Callable[[], T]) -> T:
    """What `work` returns, or `otherwise` if it takes longer than `within` allows."""
    try:
        return within(work)
    except DeadlinePassed:
        return otherwise


class TimeLimit:
    """The time that a whole command may take, counted from the creation of this object.

    `until_s` is its end on the monotonic clock; infinite without `seconds`.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self.until_s = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds until the limit, 0 after it."""
        return max(0.0, self.until_s - time.monotonic())

    def end(self) -> None:
        """Ends the time now, for every thread that checks it."""
        self._seconds = self._seconds or 0.0
        self.until_s = 0.0

    def check(self) -> None:
        """Raises TimeLimitPassed after the limit."""
        if self._seconds is not None and not self.left_s:
            raise TimeLimitPassed(self._seconds)


NO_LIMIT = TimeLimit()


_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Raises an interrupt only at the end of the block.

    A process or a thread that is half started would belong to nobody.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _INTERRUPTS}
    held = [number for number in handlers if handlers[number] is not signal.SIG_IGN]
    for number in held:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number in held:
            signal.signal(number, handlers[number])
        if came:
            signal.raise_signal(came[0])
