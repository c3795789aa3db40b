"""Holds interrupts back while something is half done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

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
