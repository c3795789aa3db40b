"""What `layers` writes to a journal as it goes: what blocks take, the cuts that were tried, and a proof's windows."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpubalance.jobs.measure.window import Window
from gpubalance.planning.pipeline.graph import Graph
from gpubalance.planning.pipeline.timeline import Timeline
from gpubalance.results.timing import Duration
from gpubalance.settings.record import Record, Seconds

_Bytes = Annotated[int, Field(ge=0, lt=2**63)]
_Number = Annotated[int, Field(ge=0, le=10**6)]


class BlockPoint(Record):
    """What one block takes on a device for a micro-batch: seconds, and bytes if the allocator reports them.

    `held_bytes` stay for each micro-batch in flight, `working_bytes` are taken for a moment beside them.
    """

    block: _Number
    micro_batch: Annotated[int, Field(ge=1, le=10**6)]
    forward_s: Duration
    backward_s: Duration
    update_s: Seconds
    fixed_bytes: _Bytes
    held_bytes: _Bytes | None
    working_bytes: _Bytes | None


class Blocks(Record):
    """All that was measured on a device alone. `limit_bytes` is what its allocator may take."""

    graph: Graph
    limit_bytes: _Bytes | None
    points: tuple[BlockPoint, ...]


class PipeWindow(Window):
    """A window of a cut: its stamped steps are timelines."""

    timelines: Annotated[tuple[Timeline, ...], Field(min_length=1)]


class TriedCut(Record):
    """What a cut gave when it was tried. `window` is null if it ran out of memory, on the device `ran_out`."""

    window: PipeWindow | None = None
    ran_out: _Number | None = None
