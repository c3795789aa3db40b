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
        """The calls of the blocks from `first` to `last`: the first, and the one after the last."""
        return self.starts[first], self._ends[last]

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return (*self.starts[1:], len(self.calls.calls))

    @cached_property
    def graph(self) -> Graph:
        """The blocks as planning needs them."""
        sizes = self.calls.sizes
        all_operations = sizes[:, 0].sum() or 1
        blocks = []
        for first, end in zip(self.starts, self._ends, strict=True):
            calls = self.calls.calls[first:end]
            names = " … ".join(dict.fromkeys((calls[0].name, calls[-1].name)))
            operations, weights, outputs = sizes[first:end].sum(axis=0).tolist()
            share = float(operations / all_operations)
            blocks.append(Block(names, end - first, int(weights), int(outputs), share))
        return Graph(tuple(blocks), self._edges())

    def _edges(self) -> tuple[Edge, ...]:
        calls = range(len(self.calls.calls))
        block_of = (np.searchsorted(self.starts, calls, side="right") - 1).tolist()
        edges = []
        for slot, maker in self.calls.made.items():
            if maker >= 0:
                source = block_of[maker]
                targets = {block_of[taker] for taker in self.calls.takers[slot]} - {
                    source
                }
                if targets:
                    size = self.calls.bytes_of(slot)
                    edges.append(Edge(source, tuple(sorted(targets)), size))
        return tuple(edges)


def blocks_of(calls: Calls, cuts: Sequence[str] = ()) -> Blocks:
    """At most MOST blocks of about equal size, cut where little crosses, or before layers `cuts`.

    Raises Refused for a graph that can't be cut, BadInput for a cut that is not possible.
    """
    in_the_way = calls.in_the_way()
    if cuts:
        starts = {_cut_before(name, calls, in_the_way) for name in cuts}
        return Blocks(calls, (0, *sorted(starts)))
    allowed = [cut for cut in range(1, len(calls.calls)) if cut not in in_the_way]
    if not allowed:
        reason = ""
        if in_the_way:
            layer = next(iter(in_the_way.values()))
            reason = f": the layer {layer} has calls at both ends of it"
        raise Refused(
            f"the model can't be cut{reason}",
            remedy="a layer's weights are on one device: cut a model between layers that are "
            "called once",
        )
    if len(allowed) >= MOST:
        allowed = _narrowest(calls, allowed)
    return Blocks(calls, (0, *allowed))


def _cut_before(name: str, calls: Calls, in_the_way: dict[int, str]) -> int:
    """The number of the layer's first call."""
    names = [call.name for call in calls.calls]
    if name == names[0] or name not in names:
        why = "is the first" if name == names[0] else "is not there"
        raise BadInput(
            f"--cuts {name}: a cut is before a layer, and this one {why}",
            remedy="a layer of a nested model is called model/layer",
        )
    cut = names.index(name)
    if cut in in_the_way:
        raise BadInput(
            f"--cuts {name}: the layer {in_the_way[cut]} has calls on both sides of that cut",
            remedy="cut before all of its calls, or after them",
        )
    return cut


def _narrowest(calls: Calls, allowed: Sequence[int]) -> list[int]:
    """One cut in each of MOST − 1 stretches of about equal size, where the fewest bytes cross."""
    wholes = np.maximum(calls.sizes.sum(axis=0), 1.0)
    parts = (calls.sizes / wholes).sum(axis=1)
    until = np.cumsum(parts) / parts.sum()
    crossing_bytes = Blocks(calls, tuple(range(len(calls.calls)))).graph.crossing_bytes
    # Of each stretch: its costs, and the cut
    best: dict[int, tuple[float, float, int]] = {}
    for cut in allowed:
        whole, place = divmod(float(until[cut - 1]) * MOST - 0.5, 1.0)
        stretch = min(max(int(whole), 0), MOST - 2)
        candidate = crossing_bytes[cut], abs(place - 0.5), cut
        best[stretch] = min(candidate, best.get(stretch, candidate))
    return sorted(cut for _, _, cut in best.values())
