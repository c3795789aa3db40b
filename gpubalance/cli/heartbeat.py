"""Reports that a command is still working, where no screen shows it."""

from __future__ import annotations

import threading
from collections.abc import Callable

EVERY_S = 10.0


class Heartbeat:
    """Calls `beat` from a thread whenever nothing else was printed for so many seconds."""

    def __init__(self, beat: Callable[[], None], every_s: float = EVERY_S) -> None:
        self._beat = beat
        self._every_s = every_s
        self._printed = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def postpone(self) -> None:
        """Something was printed: the next beat is due after the whole time."""
        self._printed.set()

    def end(self) -> None:
        """Ends the thread."""
        self._ended = True
        self._printed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            if not self._printed.wait(self._every_s):
                self._beat()
            self._printed.clear()
