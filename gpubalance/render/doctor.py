"""A checkup as text: one line for each check, and what to do below each that is not ok."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gpubalance.render.table import prose
from gpubalance.results.checkup import Check, Checkup, Checkups, Status
from gpubalance.text import clean, clean_lines

_NARROW = 60  # below this many columns the detail gets lines of its own
_STATUSES: tuple[Status, ...] = ("failure", "warning", "skipped", "ok")
_STATUS_WIDTH = max(map(len, _STATUSES))
_LEAST = 24

Paint = Callable[[Status, str], str]


def checkup_text(
    found: Checkup | Checkups, columns: int = 80, paint: Paint = lambda _, word: word
) -> str:
    """The checkup in lines of at most `columns`, except for words that can't be broken; of hosts
    each under its name.

    `paint` may colour a status.
    """
    if isinstance(found, Checkups):
        return "\n\n".join(
            f"{one.host}\n{checkup_text(one, columns, paint)}" for one in found.hosts
        )
    width = max(_LEAST, columns)
    longest = max((len(check.what) for check in found.checks), default=0)
    lines = prose(_summary(found), width, hanging="")
    for check in found.checks:
        lines += _check_lines(check, width, longest, paint)
    return "\n".join(lines)


def _summary(checkup: Checkup) -> str:
    counted = Counter(check.status for check in checkup.checks)
    told = [
        f"{counted[status]} {status}{_plural(status, counted)}"
        for status in _STATUSES
        if counted[status]
    ]
    if not checkup.complete:
        return f"{', '.join(told)}; cut short"
    good = "" if counted["failure"] or counted["warning"] else "nothing is wrong: "
    return f"{good}{', '.join(told)}"


def _plural(status: Status, counted: Counter[Status]) -> str:
    return "s" if status in ("failure", "warning") and counted[status] != 1 else ""


def _check_lines(check: Check, width: int, longest: int, paint: Paint) -> list[str]:
    word, detail = check.status.ljust(_STATUS_WIDTH), clean(check.detail, 1000)
    if width < _NARROW:
        indent = "  "
        lines = [f"{word}  {check.what}", *prose(detail, width, indent, indent)]
    else:
        head = f"{word}  {check.what.ljust(longest)}  "
        indent = " " * len(head)
        lines = prose(detail, width, head, indent) or [head.rstrip()]
    lines[0] = paint(check.status, word) + lines[0][len(word) :]
    for number, line in enumerate(clean_lines(check.next or "").splitlines()):
        lines += prose(line, width, f"{indent}{'  ' if number else '→ '}", f"{indent}  ")
    return lines
