"""Which blocks are on which device, and what the devices send each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpubalance.planning.pipeline.graph import Graph


@dataclass(frozen=True)
class Segment:
    """The blocks from `first` to `last`, both of them, on one device. A device has one segment or more: its stage."""

    first: int
    last: int
    device: int

    @property
    def blocks(self) -> slice:
        """Its place in a sequence of all blocks."""
        return slice(self.first, self.last + 1)

    @property
    def numbers(self) -> range:
        """Of its blocks."""
        return range(self.first, self.last + 1)


@dataclass(frozen=True)
class Link:
    """What one segment gives to another, by their numbers; nothing is sent where both are on one device."""

    source: int
    target: int
    bytes_per_sample: int


def links_between(graph: Graph, segments: Sequence[Segment]) -> tuple[Link, ...]:
    """Every pair of segments of which one takes tensors of the other; a tensor counts once a pair."""
    owner = [number for number, segment in enumerate(segments) for _ in segment.numbers]
    sent: dict[tuple[int, int], int] = defaultdict(int)
    for edge in graph.edges:
        source = owner[edge.source]
        for target in {owner[block] for block in edge.targets} - {source}:
            sent[source, target] += edge.bytes_per_sample
    return tuple(Link(source, target, size) for (source, target), size in sorted(sent.items()))


def devices_of(segments: Iterable[Segment]) -> tuple[int, ...]:
    """The devices in use, in the order in which they first come."""
    return tuple(dict.fromkeys(segment.device for segment in segments))
