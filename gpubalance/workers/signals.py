"""Holds signals back while a process or a thread starts."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Raises an interrupt only at the end of the block: a half started process or thread would belong to nobody."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted
        return
    came: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.getsignal(n) for n in signals if signal.getsignal(n) is not signal.SIG_IGN}
    for n in before:
        signal.signal(n, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for came_first in came[:1]:
            signal.raise_signal(came_first)
