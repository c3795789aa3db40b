"""What a command of a queue printed: in a file, and its last lines for messages."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

from gpubalance.jobs.events import Doing, Watch
from gpubalance.remedies import known_error
from gpubalance.text import clean

_TAIL_LINES = 10
_LONGEST_LINE = 300
_NO_MEMORY = re.compile("|".join(known_error("out-of-memory").signs))


class CommandLog:
    """Where a command's output goes: its file, as long as that can be written, and its last lines.

    `path` is None if the file could not be written. `lacks_memory`: a line says that a device's
    memory ran out.
    """

    def __init__(self, path: Path, watch: Watch, *, append: bool) -> None:
        self.path: str | None = str(path)
        self.lacks_memory = False
        self._lines = deque[str](maxlen=_TAIL_LINES)
        self._last = ""
        self._watch = watch
        mode = "a" if append else "w"
        try:
            self._file = path.open(mode, encoding="utf-8", buffering=1)
        except OSError as error:
            self._give_up(error)

    def take(self, line: str, *_: str) -> None:
        """Takes a line that the command printed."""
        self._lines.append(line)
        if _NO_MEMORY.search(line):
            self.lacks_memory = True
        if line.strip():
            self._last = line
        try:
            if self.path:
                self._file.write(line + "\n")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        why = f"can't write {self.path}: {error.strerror}"
        self._watch(Doing(f"{why}: continuing without a log", stays=True))
        self.path = None

    @property
    def last(self) -> str:
        """The last line that is not blank."""
        return clean(self._last)

    def tail(self) -> tuple[str, ...]:
        """The last lines."""
        return tuple(clean(line, _LONGEST_LINE) for line in self._lines)
