"""What is known of the errors that people meet on several GPUs, in one table: table.toml.

Every error that gpubalance shows takes its cause and remedy from there, unless it has more specific
ones; the guide's table of troubles is printed from it. `match` finds the row for a text from
TensorFlow, CUDA or the driver. A pattern covers only what is specific to its error: a mistake in a
user's own model must match no row.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class KnownError:
    """A row. `message` is the text by its author, shortened to what identifies it.

    `signs` are regular expressions, any of which is enough; a row without any is found only by its
    code. `fatal` means that the error ends a process: only such rows are searched for in a dead
    worker's log, as logs hold many harmless complaints. `memory` means that a lack of the GPU's
    memory may look so: it is one if a smaller batch trains.
    """

    code: str
    message: str
    cause: str
    remedy: str
    signs: Sequence[str] = ()
    fatal: bool = False
    memory: bool = False


@functools.cache
def known_errors() -> Mapping[str, KnownError]:
    """All rows by their codes, in the order in which they are searched."""
    if sys.version_info >= (3, 11):  # here, as most commands meet no error
        import tomllib
    else:
        import tomli as tomllib
    file = resources.files(__package__).joinpath("table.toml")
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    return {code: KnownError(code, **row) for code, row in table.items()}


def known_error(code: str) -> KnownError:
    """The row with that code. Raises KeyError."""
    return known_errors()[code]


def match(text: str) -> KnownError | None:
    """The first row with a pattern in the text, or None."""
    for row, pattern in _patterns():
        if pattern.search(text):
            return row
    return None


def match_log(log: str) -> KnownError | None:
    """The last fatal row in a dead process' log, or None."""
    for line in reversed(log.splitlines()):
        row = match(line)
        if row is not None and row.fatal:
            return row
    return None


@functools.cache
def _patterns() -> list[tuple[KnownError, re.Pattern[str]]]:
    patterns = []
    for row in known_errors().values():
        if row.signs:
            signs = "|".join(f"(?:{sign})" for sign in row.signs)
            patterns.append((row, re.compile(signs)))
    return patterns
