"""What stands around a result's tables: its answer, and what the numbers mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpubalance.guide.chapters import read_chapter
from gpubalance.render.independent import independent_told
from gpubalance.render.layers import layers_told
from gpubalance.render.plan import plan_headline, plan_told
from gpubalance.render.probe import probe_headline, probe_told
from gpubalance.render.queue import queue_told
from gpubalance.render.run import run_headline, run_told
from gpubalance.render.table import BLANK, Part, TextTable
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.queue import Queue
from gpubalance.results.records import Reported
from gpubalance.results.run import Run

_TOLD: dict[type[Reported], Callable[[Any], Iterator[Part]]] = {
    Probe: probe_told,
    Plan: plan_told,
    Run: run_told,
    Independent: independent_told,
    Layers: layers_told,
    Queue: queue_told,
}
# Of these a terminal may tell first what the user's input pipeline gives.
_HEADLINES: dict[type[Reported], Callable[[Any], str]] = {
    Probe: probe_headline,
    Plan: plan_headline,
    Run: run_headline,
}
_CHAPTERS = ("numbers", "batch")
_TABLE = re.compile(
    r"(?m)^(?:## (.*)|(.*):)\n\n(?:[^#|\n].*\n+)*\| number \| formula "
    r"\|.*\n\|[-|]+\|\n((?:\|.*\|\n)+)"
)


class Answer(NamedTuple):
    """The sentence for a reader who stops after ten seconds, and the others, with the devices'
    table among them.
    """

    headline: str
    parts: tuple[str | TextTable, ...]


def told_of(result: Reported) -> Iterator[Part]:
    """What a terminal shows of a result."""
    return _TOLD[type(result)](result)


def answer_of(result: Reported) -> Answer:
    """The same without pictures, which are charts in a report, and beginning with what the devices
    gave.
    """
    parts = [
        part
        for part in told_of(result)
        if isinstance(part, str | TextTable) and part not in ("", BLANK)
    ]
    headline = str(parts[0])
    if type(result) in _HEADLINES:
        headline = _HEADLINES[type(result)](result)
    parts.remove(headline)
    return Answer(headline, tuple(parts))


class Formula(NamedTuple):
    """A number, its formula in the signs of `terms`, and how it is measured or where it
    comes from.
    """

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
            yield (
                (title or lead).replace("`", ""),
                [Formula(*(c.replace(r"\|", "|") for c in row)) for row in cells],
            )
