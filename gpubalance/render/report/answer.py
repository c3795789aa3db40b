"""The answer at the top of a section: what the command told when it had the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpubalance.render.independent import independent_told
from gpubalance.render.layers import layers_told
from gpubalance.render.plan import plan_told
from gpubalance.render.probe import probe_told
from gpubalance.render.queue import queue_told
from gpubalance.render.rates import per_s
from gpubalance.render.run import run_told
from gpubalance.render.table import BLANK, Grid, Part
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


class Answer(NamedTuple):
    """The sentence for a reader who stops after ten seconds, and the others, with the devices' table among them."""

    headline: str
    parts: tuple[str | Grid, ...]


def told_of(result: Reported) -> Iterator[Part]:
    """What a terminal shows of a result."""
    return _TOLD[type(result)](result)


def answer_of(result: Reported) -> Answer:
    """The same without pictures, which are charts in a report."""
    first, *others = (part for part in told_of(result) if isinstance(part, str | Grid) and part not in ("", BLANK))
    if isinstance(result, Probe):
        bests = [one.solo_best.throughput for one in result.probes if one.solo_best]
        return Answer(f"each device alone: {per_s(sum(bests))} in total", (first, *others))
    return Answer(str(first), tuple(others))
