"""Lines over a pipe, and the beats between them by which each side shows that it lives.

It loads no slow module, as the agent uses it.
"""

from __future__ import annotations

import contextlib
import queue
import select
import threading
from collections.abc import Iterator
from typing import IO

# The variable with the number and the inode of the pipe on which a script reports its progress
REPORTS = "GPUBALANCE_REPORTS"
_BEATS_EVERY_S = 5.0
_BEAT = b"\0"  # which no message has
_MOST_WAITING = 1000
_CHUNK = 1 << 16


class LineReader:
    """The lines of a pipe, without beats."""

    def __init__(self, pipe: IO[bytes]) -> None:
        """`pipe` has no buffer."""
        self._pipe = pipe
        self._unended = b""
        self._waiting = select.poll()  # `select` takes no high number
        self._waiting.register(pipe, select.POLLIN)

    def lines(self, within_s: float | None) -> list[bytes] | None:
        """The lines that have come; None if nothing has in that time, not even a beat.

        Raises EOFError at the end.
        """
        if not self._waiting.poll(None if within_s is None else 1000 * within_s):
            return None
        chunk = b"" if self._pipe.closed else self._pipe.read(_CHUNK)
        if not chunk:
            raise EOFError
        text = self._unended + chunk.replace(_BEAT, b"")
        *lines, self._unended = text.split(b"\n")
        return lines


def lines_of(pipe: IO[bytes], alone_s: float | None) -> Iterator[bytes]:
    """The lines that come until their sender is gone or, if given, silent for `alone_s`."""
    reader = LineReader(pipe)
    with contextlib.suppress(EOFError):
        while (lines := reader.lines(alone_s)) is not None:
            yield from lines


class LineWriter(threading.Thread):
    """Writes lines to a pipe, so that nobody waits for its reader.

    While there are no lines it may send beats.
    """

    def __init__(self, pipe: IO[bytes], *, beats: bool = False) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._every_s = _BEATS_EVERY_S if beats else None
        self._lines = queue.Queue[bytes](_MOST_WAITING)
        self.start()

    def put(self, line: bytes) -> None:
        """Writes the line soon."""
        self._lines.put(line + b"\n")

    def close(self) -> None:
        """Closes the pipe once all is written."""
        self._lines.put(b"")

    def run(self) -> None:
        """Writes until it is closed, or nobody reads any more."""
        with contextlib.suppress(OSError), self._pipe:
            while rest := self._next():
                while rest:
                    rest = rest[self._pipe.write(rest) :]

    def _next(self) -> bytes:
        try:
            return self._lines.get(timeout=self._every_s)
        except queue.Empty:
            return _BEAT
