"""How an interrupt reaches a job: Ctrl-C, SIGTERM and SIGHUP alike."""

from __future__ import annotations

import atexit
import math
import signal
import time

# Ending takes a second or two. A second interrupt in that time would only leave a half printed
# result or a worker behind. After this time something hangs, and another interrupt breaks into it.
_ENDS_WITHIN_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signalled(KeyboardInterrupt):
    """An interrupt by the signal with that `number`."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class InterruptHandler:
    """Raises Signalled in the main thread; ignores signals that follow soon.

    `number` is the last signal's.
    """

    number: int | None = None
    _raised_s = -math.inf

    def __call__(self, number: int, frame: object) -> None:
        del frame
        now_s = time.monotonic()
        if now_s - self._raised_s > _ENDS_WITHIN_S:
            self.number = number
            self._raised_s = now_s
            raise Signalled(number)


def handle_interrupts() -> InterruptHandler:
    """Handles these signals alike from now on, except those ignored so far, as under nohup."""
    handler = InterruptHandler()
    atexit.register(_ignore_signals)
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
    return handler


def _ignore_signals() -> None:
    # When Python ends, it restores their defaults, and one would kill us though all is done.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
