"""A row of the table of known errors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """A row. `message` is the text by its author, shortened to what identifies it.

    `signs` are regular expressions, any of which is enough; a row without any is found only by its code. `fatal` means
    that the error ends a process: only such rows are searched for in a dead worker's log, as logs hold many harmless
    complaints.
    """

    code: str
    message: str
    cause: str
    remedy: str
    signs: tuple[str, ...]
    fatal: bool


def row(code: str, message: str, cause: str, remedy: str, *signs: str, fatal: bool = False) -> Known:
    """The row of an error with these signs."""
    return Known(code, message, cause, remedy, signs, fatal)
