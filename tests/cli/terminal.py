"""Runs a program in a terminal of a given size, and records what its user sees."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyte

PATIENCE_S = 240.0
_ROWS = 24


@dataclass(frozen=True)
class Seen:
    """All that was written to the terminal, and the screen after each write.

    `moments` has for each write the seconds since the start and how much was written by then.
    """

    written: bytes
    pictures: tuple[tuple[str, ...], ...]
    moments: tuple[tuple[float, int], ...]

    def ever(self, text: str) -> bool:
        """Whether a line of any screen has the text."""
        return any(text in line for picture in self.pictures for line in picture)


def command_in_terminal(
    command: Sequence[str],
    columns: int,
    *,
    environment: Mapping[str, str] | None = None,
    rows: int = _ROWS,
) -> tuple[int, Seen]:
    """Runs any command with its three streams on a terminal, of 24 rows if not said otherwise.

    Returns the exit status and what was seen.
    """
    to_gpubalance_error, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    unset = {"COLUMNS", "LINES", "NO_COLOR", "CUDA_VISIBLE_DEVICES"}
    variables = {key: value for key, value in os.environ.items() if key not in unset}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**variables, "TERM": "xterm", **(environment or {})},
    )
    os.close(theirs)
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    written = b""
    pictures = []
    moments = []
    began_s = time.monotonic()
    until = began_s + PATIENCE_S
    while time.monotonic() < until and (data := _read(to_gpubalance_error)) is not None:
        if data:
            written += data
            stream.feed(data)
            pictures.append(tuple(line.rstrip() for line in screen.display))
            moments.append((time.monotonic() - began_s, len(written)))
    os.close(to_gpubalance_error)
    seen = Seen(written, tuple(pictures), tuple(moments))
    return process.wait(timeout=60), seen


def _read(descriptor: int) -> bytes | None:
    """The bytes that are there now; None at the end."""
    if not select.select([descriptor], [], [], 1.0)[0]:
        return b""
    try:
        return os.read(descriptor, 65536) or None
    except OSError:  # EIO: the program has closed its side
        return None
