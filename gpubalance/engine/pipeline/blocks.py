"""A model's calls in blocks, which are measured, and between which it may be cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpubalance.engine.pipeline.calls import Calls
from gpubalance.errors import BadInput, Refused
from gpubalance.planning.pipeline.problem import Block, Edge, Graph

MOST = 40


@dataclass(frozen=True)
class Blocks:
    """A model's calls in blocks: block i has the calls from `starts[i]` to the next block's."""

    calls: Calls
    starts: tuple[int, ...]

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The span of calls of the blocks from `first` to `last`: the first call, and the one after
        the last.
        """
        return self.starts[first], self._ends[last]

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return (*self.starts[1:], len(self.calls.calls))

    @cached_property
    def graph(self) -> Graph:
        """The blocks as planning needs them."""
        blocks, sizes = [], self.calls.sizes
        for first, end in zip(self.starts, self._ends, strict=True):
            calls = self.calls.calls[first:end]
            names = " … ".join(dict.fromkeys((calls[0].name, calls[-1].name)))
            operations, weights, kept = sizes[first:end].sum(axis=0).tolist()
            share = operations / (sizes[:, 0].sum() or 1)
            blocks.append(Block(names, end - first, int(weights), int(kept), float(share)))
        return Graph(tuple(blocks), self._edges())

    def _edges(self) -> tuple[Edge, ...]:
        owner = np.searchsorted(self.starts, range(len(self.calls.calls)), side="right") - 1
        edges = []
        for slot, made in self.calls.made.items():
            targets = {int(owner[taker]) for taker in self.calls.takers[slot]} - {int(owner[made])}
            if made >= 0 and targets:
                edges.append(
                    Edge(int(owner[made]), tuple(sorted(targets)), self.calls.bytes_of(slot))
                )
        return tuple(edges)


def blocks_of(calls: Calls, cuts: Sequence[str] = ()) -> Blocks:
    """At most MOST blocks of about equal size, cut where little crosses; or cut before the layers
    in `cuts`.

    Raises Refused for a graph that can't be cut, BadInput for a cut that is not possible.
    """
    in_the_way = calls.in_the_way()
    if cuts:
        return Blocks(
            calls,
            (0, *sorted(_cut_before(name, calls, in_the_way) for name in dict.fromkeys(cuts))),
        )
    allowed = [cut for cut in range(1, len(calls.calls)) if cut not in in_the_way]
    if not allowed:
        told = (
            f": the layer {next(iter(in_the_way.values()))} has calls at both ends of it"
            if in_the_way
            else ""
        )
        raise Refused(
            f"the model can't be cut{told}",
            remedy=(
                "a layer's weights are on one device: cut a model between layers that are called "
                "once"
            ),
        )
    if len(allowed) < MOST:
        return Blocks(calls, (0, *allowed))
    return Blocks(calls, (0, *_narrowest(calls, allowed)))


def _cut_before(name: str, calls: Calls, in_the_way: dict[int, str]) -> int:
    found = next((number for number, call in enumerate(calls.calls) if call.name == name), None)
    if not found:
        why = "is the first" if found == 0 else "is not there"
        raise BadInput(
            f"--cuts {name}: a cut is before a layer, and this one {why}",
            remedy="a layer of a nested model is called model/layer",
        )
    if found in in_the_way:
        raise BadInput(
            f"--cuts {name}: the layer {in_the_way[found]} has calls on both sides of that cut",
            remedy="cut before all of its calls, or after them",
        )
    return found


def _narrowest(calls: Calls, allowed: Sequence[int]) -> list[int]:
    """One cut in each of MOST − 1 stretches of about equal size, where the fewest bytes cross."""
    parts = (calls.sizes / np.maximum(calls.sizes.sum(axis=0), 1.0)).sum(axis=1)
    until = np.cumsum(parts) / parts.sum()
    crossing = Blocks(calls, tuple(range(len(calls.calls)))).graph.crossing_bytes
    chosen: dict[int, tuple[tuple[float, ...], int]] = {}
    for cut in allowed:
        stretch, place = divmod(float(until[cut - 1]) * MOST - 0.5, 1.0)
        cost = crossing[cut], abs(place - 0.5)
        number = min(max(int(stretch), 0), MOST - 2)
        if number not in chosen or (cost, cut) < chosen[number]:
            chosen[number] = cost, cut
    return sorted(cut for _, cut in chosen.values())
