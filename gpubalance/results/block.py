"""What is measured of a model's block on one device."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpubalance.results.timing import Duration
from gpubalance.settings.record import Record, Seconds

_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Times = Annotated[tuple[Duration, ...], Field(min_length=1)]


class BlockTimed(Record):
    """A block alone on a device, at a micro-batch of samples: seconds of each of its passes, and of each update.

    `fixed_bytes` are weights, gradients and slots; `held_bytes` what a micro-batch in flight takes; `working_bytes`
    what a backward pass takes for a moment beside these. The last two are null if no allocator reports them.
    """

    block: _Count
    micro_batch: Annotated[int, Field(ge=1, le=10**6)]
    forward_s: _Times
    backward_s: _Times
    update_s: Annotated[tuple[Seconds, ...], Field(min_length=1)]
    fixed_bytes: _Count
    held_bytes: _Count | None
    working_bytes: _Count | None
