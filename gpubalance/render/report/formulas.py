"""What each number means and how it is computed: the tables of formulas in the guide."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpubalance.guide.chapters import read_chapter

_CHAPTERS = ("numbers", "batch")
_TABLE = re.compile(r"(?m)^(?:## (.*)|(.*):)\n\n(?:[^#|\n].*\n+)*\| number \| formula \|.*\n\|[-|]+\|\n((?:\|.*\|\n)+)")


class Formula(NamedTuple):
    """A number, its formula in the signs of `terms`, and how it is measured or where it comes from."""

    number: str
    formula: str
    meaning: str


def terms() -> str:
    """What the signs in the formulas are."""
    return " ".join(read_chapter(_CHAPTERS[0]).text.split("\n\n")[2].split())


def groups() -> Iterator[tuple[str, list[Formula]]]:
    """Each table of formulas under its title."""
    for chapter in _CHAPTERS:
        for title, lead, rows in _TABLE.findall(read_chapter(chapter).text):
            cells = (re.split(r"(?<!\\) \| ", row.strip("| ")) for row in rows.splitlines())
            yield (title or lead).replace("`", ""), [Formula(*(c.replace(r"\|", "|") for c in row)) for row in cells]
