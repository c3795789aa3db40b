"""What is known of the errors that people meet on several GPUs: one table of message, cause and remedy.

Every error that gpubalance shows takes its cause and its remedy from here, where it has none that is closer to the
case; the guide's table of troubles is printed from it. `match` finds the row of a text of TensorFlow's, CUDA's or
the driver's. A pattern is as much of the text as only that error has: a mistake in a user's own model is no row.
"""

from __future__ import annotations

import functools
import re

from gpubalance.remedies import driver, installation, memory, step
from gpubalance.remedies.row import Known

TABLE: tuple[Known, ...] = (*driver.ROWS, *installation.ROWS, *memory.ROWS, *step.ROWS)
_BY_CODE = {known.code: known for known in TABLE}
# Their texts also match a wider row: searched first.
_FIRST = ("cudnn-version", "nccl-system", "dst-tensor", "no-algorithm")


def known(code: str) -> Known:
    """The row of that code. Raises KeyError."""
    return _BY_CODE[code]


def match(text: str) -> Known | None:
    """The row that matches a text, or None."""
    return next((row for row, signs in _searched() if signs.search(text)), None)


def match_log(log: str) -> Known | None:
    """The last row in a dead process' log that ends a process, or None."""
    for line in reversed(log.splitlines()):
        row = match(line)
        if row is not None and row.fatal:
            return row
    return None


@functools.cache
def _searched() -> tuple[tuple[Known, re.Pattern[str]], ...]:
    rows = sorted((row for row in TABLE if row.signs), key=lambda row: row.code not in _FIRST)
    return tuple((row, re.compile("|".join(f"(?:{sign})" for sign in row.signs))) for row in rows)
