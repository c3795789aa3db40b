"""A model's graph as a pipeline sees it: blocks in order, the tensors between them, and where it may be cut."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Edge:
    """A tensor that leaves its block. `targets` are the later blocks that use it, in order."""

    source: int
    targets: tuple[int, ...]
    bytes_per_sample: int


@dataclass(frozen=True)
class Block:
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
