"""A checkup as text: one line for each check, and what to do below each that is not ok."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable

from gpubalance.results.checkup import Check, Checkup, Checkups, Status
from gpubalance.text import clean, clean_lines

_NARROW = 60  # below this many columns the detail gets lines of its own
_STATUSES: tuple[Status, ...] = ("failure", "warning", "skipped", "ok")
_STATUS_WIDTH = max(map(len, _STATUSES))
_WIDEST, _LEAST = 100, 24

Paint = Callable[[Status, str], str]


def plain(status: Status, word: str) -> str:
    """Returns the word uncoloured."""
    del status
    return word


def checkup_text(checkup: Checkup, columns: int = 80, paint: Paint = plain) -> str:
    """The checkup in lines of at most `columns`, except for words that can't be broken. `paint` may colour a status."""
    width = max(_LEAST, min(columns, _WIDEST))
    name_width = max((len(check.what) for check in checkup.checks), default=0)
    lines = textwrap.wrap(_summary(checkup), width)
    for check in checkup.checks:
        lines += _check_lines(check, width, name_width, paint)
    return "\n".join(lines)


def checkups_text(checkups: Checkups, columns: int = 80, paint: Paint = plain) -> str:
    """Each host's checkup under its name."""
    return "\n\n".join(f"{one.host}\n{checkup_text(one, columns, paint)}" for one in checkups.hosts)


def _summary(checkup: Checkup) -> str:
    counted = Counter(check.status for check in checkup.checks)
    parts = [f"{counted[status]} {_plural(status, counted[status])}" for status in _STATUSES if counted[status]]
    cut = "" if checkup.complete else "; cut short"
    good = "nothing is wrong: " if not counted["failure"] and not counted["warning"] and checkup.complete else ""
    return f"{good}{', '.join(parts)}{cut}"


def _plural(status: Status, number: int) -> str:
    return f"{status}s" if status in ("failure", "warning") and number != 1 else status


def _check_lines(check: Check, width: int, name_width: int, paint: Paint) -> list[str]:
    word = check.status.ljust(_STATUS_WIDTH)
    detail = clean(check.detail, 1000)
    if width < _NARROW:
        head, indent = f"{word}  {check.what}", "  "
        lines = [head, *_wrapped(detail, width, indent, indent)]
    else:
        head, indent = f"{word}  {check.what.ljust(name_width)}  ", " " * (_STATUS_WIDTH + name_width + 4)
        lines = _wrapped(detail, width, head, indent) or [head.rstrip()]
    lines[0] = paint(check.status, word) + lines[0][len(word) :]
    for number, line in enumerate(clean_lines(check.next or "").splitlines()):
        lines += _wrapped(line, width, f"{indent}{'→ ' if number == 0 else '  '}", f"{indent}  ")
    return lines


def _wrapped(text: str, width: int, first: str, others: str) -> list[str]:
    """Lines that begin with `first`, then `others`. Words stay whole, as a path that is cut in two can't be copied."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
