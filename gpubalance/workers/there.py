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
    """A worker, whose stderr goes into the `log` here, or a script without one: what it says, in its order."""

    def __init__(self, number: int, log: Path | None, tell: Callable[[bytes], None]) -> None:
        self._number, self._log, self._tell = number, log, tell
        self._said = queue.SimpleQueue[tuple[int, bytes]]()
        self._read = 0
        self._failure: GpubalanceError | None = None
        self.code: int | None = None  # when it has ended
        self.has_ended = threading.Event()

    def hear(self, stream: int, chunk: bytes) -> None:
        """What it has written: the connection's thread, which must wait for nothing, says so."""
        if stream != ERRORS or self._log is None:
            self._said.put((stream, chunk))
            return
        with contextlib.suppress(OSError), self._log.open("ab") as log:  # thousands are not kept open
            log.write(chunk)

    def hear_end(self, how: int | GpubalanceError) -> None:
        """The same of its end, with an exit code, or of the connection's."""
        if self.has_ended.is_set():
            return
        if isinstance(how, int):
            self.code = how
        else:
            self._failure = how
        self.has_ended.set()
        self._said.put(_NOTHING)

    def said(self, within_s: float | None = None) -> tuple[int, bytes] | None:
        """What it has written next, and to which stream: b"" at its end, None where nothing came for so long.

        Raises EnvironmentFault where the host can't be reached or has other software, PartialResult where it is lost.
        """
        try:
            said = self._said.get(timeout=within_s)
        except queue.Empty:
            return None
        if said == _NOTHING:
            self._said.put(said)  # for whoever asks again
            if self._failure is not None:
                raise copy(self._failure)  # others raise it too, and each has a log of its own
        elif self._log is not None:  # a worker's one stream, of which little pieces are one
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
        """A worker. Where that is lost, it is noticed where the answer is read."""
        self._tell(b"%d %b\n" % (self._number, request))

    def signal(self, number: int) -> None:
        """A script gets that signal, and a moment to end by it."""
        self._tell(line(Signal(number=self._number, signal=number)))

    def kill(self) -> None:
        """From any thread: whoever waits for what it says hears that it has ended."""
        self._tell(line(End(number=self._number)))
        self._said.put(_NOTHING)

    def end(self) -> bool:
        """Ends it, with what it has started, and waits until it is gone; False where that does not happen."""
        self._tell(line(End(number=self._number)))
        return self.has_ended.wait(_ENDS_WITHIN_S)
