"""The record of a run, and of one measured split, with why it gives less than its devices alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from gpubalance.results.common import (
    Count,
    Environment,
    Interval,
    Model,
    Number,
    OfModel,
    OfSplit,
    Part,
    Peak,
    Positive,
    Ratio,
    Samples,
    Size,
    StepTime,
    Throughput,
    Warning_,
    check_length,
    without_former,
)
from gpubalance.results.timing import Remedy, Telemetry
from gpubalance.settings.record import Record, Shown

_ROUNDING = 1e-9  # of a rate


class Replica(Record):
    """One device's part in a step.

    If `micro_batch` equals the batch, the device takes it in one piece. compute_s + update_s +
    wait_s + the measurement's sync_s + input_wait_s + slow_s − excess_s is the step time.
    """

    device: Count
    batch: Size
    micro_batch: Size
    throughput: Annotated[Number, Shown(brief="samples/s")]
    compute_s: Annotated[Number, Shown(brief="compute")]
    update_s: Annotated[Number, Field(ge=0)]
    wait_s: Annotated[Number, Shown(brief="wait")]
    utilisation: Annotated[Part, Shown("computing")]
    memory_peak_bytes: Peak
    telemetry: Telemetry | None = None

    @property
    def busy_s(self) -> float:
        """Seconds of a step in which the device works."""
        return self.compute_s + self.update_s


class StepSpread(Record):
    """How steps differ because their batches differ in shape.

    Half of them take at most `p50_s`, 95 % at most `p95_s`, of `steps` that were each timed alone.
    """

    p50_s: Annotated[Positive, Shown("half up to")]
    p95_s: Annotated[Positive, Shown("95 % up to")]
    steps: Count


class SlowSteps(Record):
    """How many steps took over 1.5 times the median, of `timed` that were each timed alone."""

    count: Count
    timed: Count


class Measurement(OfSplit):
    """A measured split, with the batches of its replicas.

    A replica's `device` is its place in the result's devices. `step_spread` is null if all batches
    have one shape; otherwise `step_time_s` is of means over several batches. `slow_s` is what rare
    slow steps add to the step time, `slow_steps` how many there were, null if they add nothing or
    an earlier version measured. `excess_s` is how much longer the slowest compute and update
    took in the stamped steps than a whole unstamped step; it is above 0 only if stamping slows the
    step down.
    """

    global_batch: Count
    step_time_s: StepTime
    step_spread: StepSpread | None = None
    throughput: Throughput
    replicas: Annotated[tuple[Replica, ...], Field(min_length=1)]
    sync_s: Number
    input_wait_s: Number
    slow_s: Annotated[Number, Shown("rare slow steps")]
    slow_steps: SlowSteps | None = None
    excess_s: Number
    imbalance: Ratio

    @model_validator(mode="after")
    def _has_its_replicas(self) -> Measurement:
        check_length("replicas", len(self.replicas), len(self.split.used))
        return self


class SoloBest(Record):
    """The best throughput of one device alone, from a probe.

    `at_global_batch` is what it gives alone at the run's global batch, by its step-time model; null
    if it does not hold that. `xla_ratio` is the throughput with XLA, as Keras runs one GPU by
    itself, over that without; null if it was not measured. The faster of the two counts above.
    """

    device: Count
    batch: Samples
    throughput: Positive
    samples_per_joule: Annotated[Number | None, Shown("energy", "samples/J")] = None
    at_global_batch: Annotated[Positive | None, Shown(unit="samples/s")] = None
    xla_ratio: Annotated[Ratio | None, Shown("× with XLA")] = None

    @property
    def is_with_xla(self) -> bool:
        """Whether its best is with XLA."""
        return (self.xla_ratio or 0.0) > 1


def alone_in_use(
    bests: Sequence[SoloBest] | None, batches: Sequence[int]
) -> float | None:
    """Samples per second that the devices with samples give alone, added up; None if unknown."""
    if not bests:
        return None
    return sum(best.throughput for best in bests if batches[best.device])


class Baselines(Record):
    """What a run is compared with.

    `even` was measured interleaved with it; the solo figures come from a probe. `even` has the
    run's global batch, or, where that does not fit in one piece, is the largest equal shares that
    do.
    """

    _of_now = model_validator(mode="before")(without_former)

    even: Measurement | None
    solo_best: tuple[SoloBest, ...] | None
    solo_sum: Annotated[Number | None, Shown(unit="samples/s")]

    @property
    def solo_with_xla(self) -> bool:
        """Whether the best of the devices is with XLA in the solo sum."""
        return any(best.is_with_xla for best in self.solo_best or ())


class InputPipeline(Record):
    """The input pipeline of the user's data.

    `alone` is its throughput without a model, in the run's global batches. `processor_use` is the
    fraction of all the host's cores that was busy meanwhile. `held` is the split's throughput with
    batches of the same data that lie on the devices, as if the pipeline took no time. It `binds` if
    `alone` is clearly below `held`, or below the sum of what the devices gave alone. If it binds,
    `remedies` are the usual ones. `joined_from` is the size of the user's own batches if they
    differ in shape and were joined into others here; `split.fit` would leave them as they are.
    """

    alone: Annotated[Throughput, Shown(unit="samples/s")]
    processor_use: Annotated[Part, Field(ge=0)]
    held: Annotated[Throughput | None, Shown(unit="samples/s")]
    binds: bool
    remedies: tuple[Remedy, ...] = ()
    joined_from: Size | None = None


class Run(Measurement, OfModel):
    """A split that was run on its devices, with a batch for each of them.

    `pipeline` is null for random samples. `pack_bytes` is how many bytes of gradients were summed
    in one all-reduce: 0 for all, null for a device alone.
    """

    kind: Literal["run"] = "run"
    environment: Environment
    model: Model
    warmup_steps: Annotated[Count, Shown("warm-up steps")]
    steps: Annotated[Count, Shown("measured steps")]
    stamp_cost: Part | None
    pack_bytes: Annotated[
        Count | None, Shown("gradients per all-reduce", "bytes", has_ratio=False)
    ] = None
    baselines: Baselines
    speedup_over_even: Annotated[Ratio | None, Shown("× over even")]
    speedup_ci95: Interval
    scaling_efficiency: Annotated[Part | None, Shown("of the solo sum")]
    pipeline: InputPipeline | None = None
    complete: bool
    warnings: tuple[Warning_, ...]

    @property
    def solo_sum_in_use(self) -> float | None:
        """What the devices with samples give alone, added up, in samples/s; None if unknown."""
        return alone_in_use(self.baselines.solo_best, self.batches)

    @property
    def awaited_input_s(self) -> float | None:
        """Seconds that a step waits for data; None if the data lies on the devices."""
        if self.settings.input == "host" or self.pipeline is not None:
            return self.input_wait_s
        return None

    @model_validator(mode="after")
    def _sound(self) -> Run:
        check_length("batches", len(self.batches), len(self.devices))
        return self


class DeviceRun(NamedTuple):
    """One device in a run: its best alone (samples/s), its batch, and its compute plus update."""

    solo_best: float
    batch: int
    alone_s: float
    busy_s: float


class SoloGap(Record):
    """Why the run gives less than the devices alone, in samples per second; below 0 is a gain.

    `left_out` is what devices without samples gave alone; `batch_sizes` what the others lose
    because their batch is not their best, as memory is less; `slowdown`, for each device, the loss
    from being slower in the run than alone; `imbalance` the wait for the slowest; `sync` what comes
    after it; `slow` what rare slow steps cost; `without_xla` what the best device alone would give
    more with XLA, as Keras runs it. With `throughput` they add up to `solo_sum`.
    """

    solo_sum: Positive
    left_out: Number
    batch_sizes: Number
    slowdown: tuple[Number, ...]
    imbalance: Number
    sync: Number
    slow: Number
    throughput: Number
    without_xla: Number = 0.0


def divide_gap(
    devices: Sequence[DeviceRun],
    step_time_s: float,
    slow_s: float = 0.0,
    xla: float = 0.0,
) -> SoloGap:
    """The parts of Σ rᵢ − B/T, cause by cause, so that the differences add up.

    `xla` is how much more the devices give alone with XLA, beside rᵢ. The steps are Σ rᵢ, for
    devices with samples; Σ bᵢ/tᵢ(bᵢ), alone at their batches; Σ bᵢ/(cᵢ+uᵢ),
    with their compute and update in the run; B / max (cᵢ+uᵢ), when all wait for the slowest; B/(T −
    slow), with sync; B/T, with rare slow steps.
    """
    used = [device for device in devices if device.batch]
    global_batch = sum(device.batch for device in used)
    solo = sum(device.solo_best for device in used)
    left_out = sum(device.solo_best for device in devices if not device.batch)
    alone = []
    joint = []
    for device in devices:
        alone.append(device.batch / device.alone_s if device.batch else 0.0)
        joint.append(device.batch / device.busy_s if device.batch else 0.0)
    together = global_batch / max(device.busy_s for device in used)
    synced = global_batch / (step_time_s - slow_s)
    throughput = global_batch / step_time_s
    return SoloGap(
        solo_sum=sum(device.solo_best for device in devices) + xla,
        left_out=left_out,
        batch_sizes=_difference(solo, sum(alone)),
        slowdown=tuple(map(_difference, alone, joint)),
        imbalance=_difference(sum(joint), together),
        sync=_difference(together, synced),
        slow=_difference(synced, throughput),
        throughput=throughput,
        without_xla=_difference(xla, 0.0),
    )


def _difference(more: float, less: float) -> float:
    """0 for what only rounding makes differ."""
    if math.isclose(more, less, rel_tol=_ROUNDING):
        return 0.0
    return more - less
