"""A row of the table of known errors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """A row. `message` is how its author writes it, shortened to what tells it from others.

    `signs` are regular expressions, any of which is enough; a row without is found by its code alone. `fatal` says that
    it ends a process: only then is a dead worker's log searched for it, as logs hold many harmless complaints.
    """

    code: str
    message: str
    cause: str
    remedy: str
    signs: tuple[str, ...] = ()
    fatal: bool = False
