"""What a worker measures, sends and stores: timings of steps, of data, and of a model's blocks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from gpubalance.planning.pipeline.problem import Timeline
from gpubalance.results.common import Exact, Whole
from gpubalance.settings.record import Record, Seconds, Shown

# Whatever takes time takes at least this many seconds: nothing is divided by 0 or becomes infinite.
Duration = Annotated[float, Field(ge=1e-9, le=1e6)]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Times = Annotated[tuple[Duration, ...], Field(min_length=1)]
# NVML's bits, https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "thermal",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "reliability",
}
# Idle, and application or display clocks that somebody has set: they are intended, so not
# throttling.
_NO_THROTTLING = 0x1 | 0x2 | 0x100
# A card can stay at its power cap for ever. These reasons pass or get worse, and its speed changes
# with them.
_PASSING = ("thermal", "software thermal", "hardware slowdown", "power brake")


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
    on the system's monotonic clock, which all processes share. `shapes_differ`: batches differ
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
    shapes_differ: bool = False
    counts: bool = True
    new_shapes: bool = False
    timeline: Timeline | None = None


class Prefetched(Record):
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


def passing(reasons: Iterable[str]) -> tuple[str, ...]:
    """The reasons for which the GPU will not keep its present speed."""
    all_reasons = set(reasons)
    return tuple(reason for reason in _PASSING if reason in all_reasons)


Reasons = Annotated[tuple[str, ...] | None, Shown("throttled by")]


class Moment(Record):
    """One reading of a GPU, `at_s` seconds after the measurement began.

    What it did not report is null. Until it is part of a result, `at_s` is on the monotonic clock.
    """

    at_s: Annotated[Exact, Shown("at", "s")]
    temperature_c: Whole | None = None
    power_w: Exact | None = None
    sm_clock_mhz: Annotated[Whole | None, Shown("SM clock")] = None
    memory_clock_mhz: Whole | None = None
    throttle_reasons: Reasons = None


class Telemetry(Record):
    """One GPU while it was watched, for `duration_s` in all. What it did not report is null.

    The temperature is the highest, the power the mean, a clock the median of the readings. The
    energy is from the GPU's own counter, else its power integrated over time. `throttle_reasons`
    has each reason that any reading gave; `ecc_uncorrected` counts the errors since the first
    reading. `ended` is the code of the known error after which there were no more readings, as the
    GPU was lost or had to be reset. `course` has at most a few hundred readings, in order of time.
    """

    readings: Whole
    duration_s: Annotated[Exact, Shown("over", "s")]
    temperature_c: Annotated[Whole | None, Shown("hottest")] = None
    power_w: Annotated[Exact | None, Shown("mean power")] = None
    energy_j: Exact | None = None
    sm_clock_mhz: Annotated[Whole | None, Shown("SM clock")] = None
    memory_clock_mhz: Whole | None = None
    throttle_reasons: Reasons = None
    ecc_uncorrected: Annotated[Whole | None, Shown("uncorrected ECC errors")] = None
    ended: Annotated[str | None, Shown("ended as")] = None
    course: tuple[Moment, ...] = ()

    def samples_per_joule(self, throughput: float) -> float | None:
        """throughput · duration_s / energy_j, for a GPU that gave that throughput throughout."""
        if self.energy_j:
            return throughput * self.duration_s / self.energy_j
        return None


def throttling(masks: Iterable[int]) -> tuple[str, ...]:
    """The reasons in NVML's bit masks, in plain words, sorted; an unknown reason by its number."""
    together = 0
    for mask in masks:
        together |= mask & ~_NO_THROTTLING
    reasons = []
    for place in range(together.bit_length()):
        bit = 1 << place
        if together & bit:
            reasons.append(_REASONS.get(bit, f"reason {bit:#x}"))
    return tuple(sorted(reasons))
