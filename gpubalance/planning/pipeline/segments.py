"""Which blocks are on which device, and what the devices send each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpubalance.planning.pipeline.graph import Graph


@dataclass(frozen=True)
class Segment:
    """The blocks `first` to `last`, inclusive, on one device. A device's one or more segments are its stage."""

    first: int
    last: int
    device: int

    @property
    def blocks(self) -> slice:
        """The slice of a sequence of all blocks that selects its blocks."""
        return slice(self.first, self.last + 1)

    @property
    def numbers(self) -> range:
        """The numbers of its blocks."""
        return range(self.first, self.last + 1)


@dataclass(frozen=True)
class Link:
    """What one segment gives another, by their numbers; nothing is sent if both are on one device."""

    source: int
    target: int
    bytes_per_sample: int


def links_between(graph: Graph, segments: Sequence[Segment]) -> tuple[Link, ...]:
    """A link for each pair of segments of which one takes tensors of the other; a tensor counts once for a pair."""
    owner = [number for number, segment in enumerate(segments) for _ in segment.numbers]
    sent: dict[tuple[int, int], int] = defaultdict(int)
    for edge in graph.edges:
        source = owner[edge.source]
        for target in {owner[block] for block in edge.targets} - {source}:
            sent[source, target] += edge.bytes_per_sample
    return tuple(Link(source, target, size) for (source, target), size in sorted(sent.items()))


def devices_of(segments: Iterable[Segment]) -> tuple[int, ...]:
    """The devices in use, in order of their first segment."""
    return tuple(dict.fromkeys(segment.device for segment in segments))
