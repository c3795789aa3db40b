"""Ctrl-C, SIGTERM and a lost terminal: the job ends its workers and keeps what was measured."""

from __future__ import annotations

import atexit
import signal
import time

# What follows an interrupt takes a second or two, and another one would only cut that short: a result half printed, a
# worker left to itself. After this time something hangs, and whoever waits may break into that.
_ENDS_WITHIN_S = 10.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signalled(KeyboardInterrupt):
    """`number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Handler:
    """Raises in the main thread, at a signal, and at one that comes long after it."""

    def __init__(self) -> None:
        self._raised: tuple[int, float] | None = None

    def __call__(self, number: int, frame: object) -> None:
        del frame
        if self._raised is None or time.monotonic() - self._raised[1] > _ENDS_WITHIN_S:
            self._raised = number, time.monotonic()
            raise Signalled(number)

    @property
    def number(self) -> int | None:
        """Of the signal that was raised last."""
        return None if self._raised is None else self._raised[0]


def handle_interrupts() -> Handler:
    """From now on all are handled alike; what is ignored, as by nohup or in a shell's background, stays so."""
    handler = Handler()
    atexit.register(_ignore_them)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
    return handler


def _ignore_them() -> None:
    """Python's very end gives a signal back its default, which is to die of it: all is done by then."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
