"""A process on another host, as the connection to that host's agent knows it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path

from gpubalance.errors import GpubalanceError
from gpubalance.workers.wire import ERRORS, OUT, PIECES_AHEAD, End, More, Signal, line

_ENDS_WITHIN_S = 10.0
_NOTHING = (0, b"")


class There:
    """A worker, whose stderr goes into the `log` here, or a script without a log: what it writes, in order."""

    def __init__(self, number: int, log: Path | None, tell: Callable[[bytes], None]) -> None:
        self._number, self._log, self._tell = number, log, tell
        self._said = queue.SimpleQueue[tuple[int, bytes]]()
        self._read = 0
        self._failure: GpubalanceError | None = None
        self.code: int | None = None  # the exit code, once it has ended
        self.has_ended = threading.Event()

    def hear(self, stream: int, chunk: bytes) -> None:
        """Takes what the process has written, from the connection's thread, which must wait for nothing."""
        if stream != ERRORS or self._log is None:
            self._said.put((stream, chunk))
            return
        with contextlib.suppress(OSError), self._log.open("ab") as log:  # thousands can't stay open
            log.write(chunk)

    def hear_end(self, how: int | GpubalanceError) -> None:
        """Takes the end of the process, with an exit code, or of the connection."""
        if self.has_ended.is_set():
            return
        if isinstance(how, int):
            self.code = how
        else:
            self._failure = how
        self.has_ended.set()
        self._said.put(_NOTHING)

    def said(self, within_s: float | None = None) -> tuple[int, bytes] | None:
        """The next stream and chunk that the process has written: b"" at its end, None if nothing comes for so long.

        Raises EnvironmentFault if the host can't be reached or has other software, PartialResult if it is lost.
        """
        try:
            said = self._said.get(timeout=within_s)
        except queue.Empty:
            return None
        if said == _NOTHING:
            self._said.put(said)  # for whoever asks again
            if self._failure is not None:
                raise copy(self._failure)  # others raise it too, and each adds its own log
        elif self._log is not None:  # a worker has one stream, so small pieces can be joined
            return OUT, said[1] + b"".join(self._more())
        else:
            self._read += 1
            if self._read % (PIECES_AHEAD // 2) == 0:
                self._tell(line(More(number=self._number, pieces=PIECES_AHEAD // 2)))
        return said

    def _more(self) -> Iterator[bytes]:
        with contextlib.suppress(queue.Empty):
            while (said := self._said.get_nowait()) != _NOTHING:
                yield said[1]
            self._said.put(said)

    def ask(self, request: bytes) -> None:
        """Sends a request to a worker. If the worker is lost, the reader of the answer notices it."""
        self._tell(b"%d %b\n" % (self._number, request))

    def signal(self, number: int) -> None:
        """Sends a script that signal; it is killed a moment later."""
        self._tell(line(Signal(number=self._number, signal=number)))

    def kill(self) -> None:
        """Kills the process, from any thread: whoever waits for what it says hears that it has ended."""
        self._tell(line(End(number=self._number)))
        self._said.put(_NOTHING)

    def end(self) -> bool:
        """Kills the process and what it started, and waits until it is gone; False if that takes too long."""
        self._tell(line(End(number=self._number)))
        return self.has_ended.wait(_ENDS_WITHIN_S)
