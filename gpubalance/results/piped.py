"""What is measured of a pipeline: its blocks alone, and its stamped steps."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from pydantic import Field

from gpubalance.planning.pipeline.timeline import Timeline
from gpubalance.results.timing import Duration
from gpubalance.settings.record import Record, Seconds

_Count = Annotated[int, Field(ge=0, lt=2**63)]


class BlockTimed(Record):
    """Blocks `first` to `last` alone on a device: seconds of each pass of a micro-batch, and of each update.

    `fixed_bytes` are weights, gradients and slots; `held_bytes` what a micro-batch in flight takes; `working_bytes`
    what a backward pass takes beside these. The last two are null if no allocator reports them.
    """

    kind: Literal["block-timed"] = "block-timed"
    first: _Count
    last: _Count
    forward_s: tuple[Seconds, ...]
    backward_s: tuple[Seconds, ...]
    update_s: tuple[Seconds, ...]
    fixed_bytes: _Count
    held_bytes: _Count | None
    working_bytes: _Count | None


class Piped(Record):
    """A step with the times of each task and each device's update, in seconds from its start."""

    kind: Literal["piped"] = "piped"
    timeline: Timeline
    seconds: Duration
    ended_s: Annotated[float, Field(ge=-1e12, le=1e12)] = Field(default_factory=time.monotonic)
    loss_is_finite: bool = True
