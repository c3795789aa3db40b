"""A model's graph as a pipeline sees it, and its blocks in segments on devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Edge(NamedTuple):
    """A tensor that leaves its block. `targets` are the later blocks that use it, in order."""

    source: int
    targets: tuple[int, ...]
    bytes_per_sample: int


class Block(NamedTuple):
    """Consecutive layer calls that stay together. `share` is their part of the model's operations.

    `activation_bytes` is what the forward pass keeps of a sample for the backward pass.
    """

    name: str
    calls: int
    weights_bytes: int
    activation_bytes: int
    share: float


@dataclass(frozen=True)
class Graph:
    """Blocks in an order in which each comes after its inputs. Cut c lies before block c."""

    blocks: tuple[Block, ...]
    edges: tuple[Edge, ...]
    cuts: frozenset[int]

    @cached_property
    def crossing_bytes(self) -> tuple[int, ...]:
        """For each block, the bytes per sample that a cut before it would send on."""
        return tuple(
            sum(edge.bytes_per_sample for edge in self.edges if edge.source < cut <= edge.targets[-1])
            for cut in range(len(self.blocks))
        )


class Segment(NamedTuple):
    """The blocks `first` to `last`, inclusive, on one device. A device's one or more segments are its stage."""

    first: int
    last: int
    device: int

    @property
    def blocks(self) -> slice:
        """The slice of a sequence of all blocks that selects its blocks."""
        return slice(self.first, self.last + 1)


class Link(NamedTuple):
    """What one segment gives another, by their numbers; nothing is sent if both are on one device."""

    source: int
    target: int
    bytes_per_sample: int


def links_between(graph: Graph, segments: Sequence[Segment]) -> tuple[Link, ...]:
    """A link for each pair of segments of which one takes tensors of the other; a tensor counts once for a pair."""
    owner = [number for number, one in enumerate(segments) for _ in range(one.first, one.last + 1)]
    sent: dict[tuple[int, int], int] = defaultdict(int)
    for edge in graph.edges:
        source = owner[edge.source]
        for target in {owner[block] for block in edge.targets} - {source}:
            sent[source, target] += edge.bytes_per_sample
    return tuple(Link(*pair, size) for pair, size in sorted(sent.items()))
