"""What a worker measures, sends and stores: timings of steps, of data, and of a model's blocks."""

from __future__ import annotations

import time
from typing import Annotated

from pydantic import Field

from gpubalance.planning.pipeline.timeline import Timeline
from gpubalance.settings.record import Record, Seconds

# Whatever takes time takes at least this many seconds: nothing is divided by 0 or becomes infinite.
Duration = Annotated[float, Field(ge=1e-9, le=1e6)]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Times = Annotated[tuple[Duration, ...], Field(min_length=1)]


class Overhead(Record):
    """What workers took of the time beside steps that count.

    `starting_s` is the time until they had loaded TensorFlow and built the model, those that start
    together once. `traced` counts the batch sizes that a worker ran for the first time, and
    `tracing_s` the time until the first step of each was over, with the step itself.
    """

    workers: _Count = 0
    starting_s: Seconds = 0.0
    traced: _Count = 0
    tracing_s: Seconds = 0.0

    def __add__(self, other: Overhead) -> Overhead:
        return Overhead(
            workers=self.workers + other.workers,
            starting_s=self.starting_s + other.starting_s,
            traced=self.traced + other.traced,
            tracing_s=self.tracing_s + other.tracing_s,
        )


class Timing(Record):
    """Some consecutive steps timed as one, with the devices idle at both ends.

    `seconds` is their wall time, of simulated devices by their own clocks; `input_wait_s` is how
    long the host waited for data. A stamped timing is one step, on GPUs queued behind another,
    whose time is in `seconds` too; it has each replica's `compute_s` and `update_s`, and `step_s`,
    the longest time from a replica's start to its end. `ended_s` is
    on the system's monotonic clock, which all processes share. `unlike` means that batches differ
    in shape, and steps with them; then a timing has each held batch equally often. A stamped step
    of a pipeline has its `timeline` instead of replicas' times. A timing that does not count had a
    step that was traced, or compiled or tuned for batches of other shapes; `new_shapes`: it counts
    though, as such shapes do not end.
    """

    steps: Annotated[int, Field(ge=1, le=10**9)]
    seconds: Duration
    ended_s: Annotated[float, Field(ge=-1e12, le=1e12)] = Field(
        default_factory=time.monotonic
    )
    input_wait_s: Seconds
    compute_s: tuple[Duration, ...] | None = None
    update_s: tuple[Seconds, ...] | None = None
    step_s: Duration | None = None
    loss_is_finite: bool = True
    unlike: bool = False
    counts: bool = True
    new_shapes: bool = False
    timeline: Timeline | None = None


class Pulled(Record):
    """`batches` came in `seconds`; meanwhile all cores together worked `cpu_s`."""

    batches: Annotated[int, Field(ge=1)]
    seconds: Annotated[float, Field(gt=0)]
    cpu_s: Seconds


class Remedy(Record):
    """What usually makes such an input pipeline faster, at the line `where` of the user's code."""

    where: str
    what: str


class BlockTimed(Record):
    """A block alone on a device, at a micro-batch: seconds of each pass and of each update.

    `fixed_bytes` are weights, gradients and slots; `held_bytes` what a micro-batch in flight takes;
    `working_bytes` what a backward pass takes for a moment beside these. The last two are null if
    no allocator reports them.
    """

    block: _Count
    micro_batch: Annotated[int, Field(ge=1, le=10**6)]
    forward_s: _Times
    backward_s: _Times
    update_s: Annotated[tuple[Seconds, ...], Field(min_length=1)]
    fixed_bytes: _Count
    held_bytes: _Count | None
    working_bytes: _Count | None
