"""The log of a worker: what it prints, and what its libraries do."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from gpubalance.text import clean

LONGEST_BYTES = 64 << 20
_TAIL_LINES = 12
_TAIL_BYTES = 20_000
# Information, and the line that follows it; absl's complaint that it was not initialised; a
# traceback's frames, as only its last line says what happened.
_SAYS_LITTLE = re.compile(
    r"I\d{4} |\d{4}-\d\d-\d\d [\d:.]+: I |WARNING: All log messages before absl"
    r"|To enable the following instructions"
    r"|Traceback \(most recent call last\):|(Current t|T)hread 0x|\s*$|  File \"|    "
)


def bound(path: Path) -> None:
    """Empties the log if it is too long: a model may print in every step, and fill the disk.

    Whoever writes the log must append.
    """
    with suppress(OSError):
        if path.stat().st_size > LONGEST_BYTES:
            os.truncate(path, 0)


def tail(path: Path) -> str:
    """The last lines without tracebacks and TensorFlow's usual messages, safe for a terminal."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    telling = [line for line in lines if not _SAYS_LITTLE.match(line)]
    return "\n".join(clean(line, 300) for line in telling[-_TAIL_LINES:])
