"""What a command tells: sentences, tables and pictures, as lines of a terminal's width."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gpubalance.results.common import Warning_

# Summaries are made for this width; a wider terminal gets no longer lines.
WIDTH = 80

CUT_SHORT = "This was cut short: the figures are of what was measured until then."
BLANK = "\n"  # an empty line; an empty text is no line
_TICKS = "▁▂▃▄▅▆▇█"
# Values that differ by less than this are drawn flat, as noise has no shape.
_FLAT = 0.02


class TextTable(NamedTuple):
    """A table's rows, the head first; the columns in `left` are aligned to the left."""

    rows: Sequence[Sequence[str]]
    left: Sequence[int] = (0, 1)


# A sentence, which may be indented, a table, or what draws a picture of a width.
Part = str | TextTable | Callable[[int], list[str]]


def summary(
    told: Iterable[Part],
    warnings: Sequence[Warning_],
    next_command: str = "",
    script: Sequence[str] = (),
    width: int = WIDTH,
    typed: Callable[[str], str] = str,
) -> str:
    """What a command prints at its end: of a result, its warnings, the next command, and a training
    script's lines.

    `typed` returns a remedy with its commands as this user types them.
    """
    lines = [*lines_of(told, width), *warning_lines(warnings, width, typed)]
    if next_command:
        lines += ["", f"next: {next_command}"]
    if script:
        is_command = len(script) == 1
        how = (
            "or train with it:"
            if is_command
            else "or, after `import gpubalance`, train your own model with it:"
        )
        lines += [how, *(f"  {line}" for line in script)]
    return "\n".join(lines)


def warning_lines(
    warnings: Sequence[Warning_], width: int = WIDTH, typed: Callable[[str], str] = str
) -> list[str]:
    """An empty line, then each warning's code, message and remedy; warnings of one kind
    are joined.
    """
    alike: dict[tuple[str, str], list[str]] = {}
    for warning in warnings:
        alike.setdefault((warning.code, warning.next), []).append(warning.message)
    lines = [""] if alike else []
    for (code, remedy), messages in alike.items():
        lines += prose(f"warning {code}: {'; '.join(messages)}", width)
        # Paths and flags stay whole, so that they can be copied.
        first, *others = prose(typed(remedy), width - 4) or [""]
        lines += [f"  → {first}", *(f"  {line}" for line in others)]
    return lines


def lines_of(parts: Iterable[Part], width: int = WIDTH) -> list[str]:
    """The lines of a terminal of that width."""
    lines: list[str] = []
    for part in parts:
        if isinstance(part, TextTable):
            lines += table(part.rows, left=part.left, width=width)
        elif isinstance(part, str):
            text = part.lstrip(" ")
            lines += [""] if part == BLANK else prose(text, width, part[: len(part) - len(text)])
        else:
            lines += part(width)
    return lines


def prose(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """A sentence wrapped to the width, though not behind a ±; the lines after the first are
    indented.

    Words stay whole, as a path that is cut in two can't be copied.
    """
    lines = textwrap.wrap(
        text.replace("± ", "±\xa0"),
        max(20, width),
        initial_indent=indent,
        subsequent_indent=f"{indent}  " if hanging is None else hanging,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace("\xa0", " ") for line in lines]


def table(
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[int] = (0,),
    indent: str = "",
    width: int | None = None,
) -> list[str]:
    """Lines with aligned columns, those in `left` to the left; the first row is the head, one of
    one cell a heading.

    If they do not fit in `width`, each row becomes a sentence: it begins with the first cell and
    those without a head, and `head cell` follows for each of the others.
    """
    widths = [
        max(map(len, column)) for column in zip(*(row for row in rows if len(row) > 1), strict=True)
    ]
    lines = []
    for row in rows:
        cells = [
            c.ljust(w) if i in left else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    if width is None or max(map(len, lines)) <= width:
        return lines
    (_, *heads), *body = rows
    sentences = []
    for first, *row in body:
        told = [(head, cell) for head, cell in zip(heads, row, strict=False) if cell]
        whose = " ".join([first, *(cell for head, cell in told if not head)])
        figures = ", ".join(f"{head} {cell}" for head, cell in told if head)
        sentences += prose(": ".join(filter(None, (whose, figures))), width)
    return sentences


def sparkline(values: Sequence[float], *, least: float | None = None) -> str:
    """One tick for each value, from the smallest (or `least`) to the largest; flat if they are
    within 2 %.
    """
    if not values:
        return ""
    bottom, top = min(values) if least is None else least, max(values)
    if top - bottom <= _FLAT * abs(top):
        return _TICKS[len(_TICKS) // 2] * len(values)
    return "".join(
        _TICKS[round((value - bottom) / (top - bottom) * (len(_TICKS) - 1))] for value in values
    )


def shorten(text: str, width: int) -> str:
    """The text, cut at its end to a width, with an ellipsis."""
    return text if len(text) <= width else text[: width - 1] + "…"


def shorten_front(text: str, width: int) -> str:
    """The text, cut at its beginning to a width of at least 2, with an ellipsis."""
    return text if len(text) <= width else "…" + text[-max(1, width - 1) :]
