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
    checkup: Checkup | Checkups, columns: int = 80, paint: Paint = lambda _, word: word
) -> str:
    """The checkup in lines of at most `columns`, but for longer words; hosts under their names.

    `paint` may colour a status.
    """
    if isinstance(checkup, Checkups):
        texts = [
            f"{host.host}\n{checkup_text(host, columns, paint)}"
            for host in checkup.hosts
        ]
        return "\n\n".join(texts)
    width = max(_LEAST, columns)
    longest = max((len(check.what) for check in checkup.checks), default=0)
    lines = prose(_counts(checkup), width, hanging="")
    for check in checkup.checks:
        lines += _check_lines(check, width, longest, paint)
    return "\n".join(lines)


def _counts(checkup: Checkup) -> str:
    """`nothing is wrong: 2 skipped, 12 ok`."""
    counts = Counter(check.status for check in checkup.checks)
    texts = []
    for status in _STATUSES:
        plural = "s" if status in ("failure", "warning") and counts[status] > 1 else ""
        if counts[status]:
            texts.append(f"{counts[status]} {status}{plural}")
    text = ", ".join(texts)
    if not checkup.complete:
        return f"{text}; cut short"
    if counts["failure"] or counts["warning"]:
        return text
    return f"nothing is wrong: {text}"


def _check_lines(check: Check, width: int, longest: int, paint: Paint) -> list[str]:
    word = check.status.ljust(_STATUS_WIDTH)
    detail = clean(check.detail, 1000)
    if width < _NARROW:
        indent = "  "
        lines = [f"{word}  {check.what}", *prose(detail, width, indent, indent)]
    else:
        head = f"{word}  {check.what.ljust(longest)}  "
        indent = " " * len(head)
        lines = prose(detail, width, head, indent) or [head.rstrip()]
    lines[0] = paint(check.status, word) + lines[0].removeprefix(word)
    mark = "→ "
    for line in clean_lines(check.next or "").splitlines():
        lines += prose(line, width, f"{indent}{mark}", f"{indent}  ")
        mark = "  "
    return lines
