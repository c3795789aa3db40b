"""The messages between a worker and its parent about a model cut into layers; see messages.py."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpubalance.planning.pipeline.graph import Graph, Segment
from gpubalance.planning.pipeline.timeline import Task
from gpubalance.settings.record import Record, Seconds

_Block = Annotated[int, Field(ge=0, lt=10**6)]
_Count = Annotated[int, Field(ge=1, le=10**9)]


class Describe(Record):
    """Which blocks does the model have? With `cuts` they begin at these layers, and it may be cut nowhere else."""

    cuts: tuple[str, ...] = ()


class TimeBlocks(Record):
    """Time each of these blocks alone on the one device, for `seconds` and at least so many passes."""

    blocks: tuple[_Block, ...]
    micro_batch: _Count
    seconds: Seconds = 0.0
    at_least: _Count = 3


class Pipe(Record):
    """Train with these segments, each device in its order, for `seconds` and at least `at_least` timings.

    A stamped timing is one step. A task that takes longer than `patience_s` is reported as hanging.
    """

    segments: tuple[Segment, ...]
    order: tuple[tuple[Task, ...], ...]
    micro_batch: _Count
    micro_batches: _Count
    seconds: Seconds = 0.0
    at_least: _Count = 1
    steps_per_timing: _Count = 1
    stamped: bool = False
    patience_s: Annotated[float, Field(gt=0)] | None = None


class Described(Record):
    """The model's blocks."""

    graph: Graph
