"""What is known of the errors that people meet on several GPUs: one table of message, cause and remedy.

Every error that gpubalance shows takes its cause and remedy from here, unless it has more specific ones; the guide's
table of troubles is printed from it. `match` finds the row for a text from TensorFlow, CUDA or the driver. A pattern
covers only what is specific to its error: a mistake in a user's own model must match no row.
"""

from __future__ import annotations

import functools
import re

from gpubalance.remedies.table import ROWS, Known

_BY_CODE = {row.code: row for row in ROWS}


def known(code: str) -> Known:
    """The row with that code. Raises KeyError."""
    return _BY_CODE[code]


def match(text: str) -> Known | None:
    """The first row with a pattern in the text, or None."""
    return next((row for row, signs in _searched() if signs.search(text)), None)


def match_log(log: str) -> Known | None:
    """The last fatal row in a dead process' log, or None."""
    rows = map(match, reversed(log.splitlines()))
    return next((row for row in rows if row and row.fatal), None)


@functools.cache
def _searched() -> tuple[tuple[Known, re.Pattern[str]], ...]:
    signs = ((row, "|".join(f"(?:{sign})" for sign in row.signs)) for row in ROWS if row.signs)
    return tuple((row, re.compile(sign)) for row, sign in signs)
