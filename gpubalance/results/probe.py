"""The record of a probe: what each device can do alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gpubalance.errors import GpubalanceError
from gpubalance.planning.model import Curve, Line
from gpubalance.results.common import (
    Count,
    Number,
    OfModel,
    Part,
    Positive,
    Samples,
    Size,
    StepTime,
    Throughput,
    Warning_,
    check_distinct,
    unsound,
)
from gpubalance.results.run import InputPipeline
from gpubalance.results.timing import Overhead, Telemetry
from gpubalance.settings.measuring import Margin
from gpubalance.settings.record import Record, Shown

# "fits", or why a batch that was tried does not train.
Outcome = Literal["fits", "oom", "margin", "crash", "deadline"]


class CurvePoint(Record):
    """One batch size, measured on one device alone.

    `precise`: the 95 % interval of the median step time is within ± 1 %. `steady`: the step time
    has no trend, and the device kept its speed. `measured_again`: it was measured a second time, as
    the first was not steady. `unlike`: batches of that size differ in shape, and its step times are
    means over several.
    """

    batch: Size
    step_time_s: StepTime
    throughput: Throughput
    memory_peak_bytes: Count | None
    precise: Annotated[bool, Shown("within ± 1 %")]
    steady: bool
    measured_again: bool = False
    late_part: Annotated[Part, Shown("slower than its profile")] = 0.0
    unlike: Annotated[bool, Shown("batches differ in shape")] = False
    telemetry: Telemetry | None = None

    @property
    def half_width(self) -> float:
        """Half the 95 % interval of the step time, as a fraction of it; infinite if unknown."""
        if self.step_time_s.ci95:
            return self.step_time_s.relative_half_width
        return math.inf


def peaks_by_batch(points: Iterable[CurvePoint]) -> list[tuple[int, int]]:
    """Each batch with its peak bytes, as far as these are known, in the order of batches."""
    peaks = []
    for point in points:
        if point.memory_peak_bytes is not None:
            peaks.append((point.batch, point.memory_peak_bytes))
    return sorted(peaks)


def times_of(
    points: Iterable[CurvePoint], *, given: bool = False
) -> list[tuple[int, float, float]]:
    """Each point's batch, seconds, and half of their interval as a fraction.

    That is 0 for times that are `given`, by somebody who measured them elsewhere.
    """
    times = []
    for point in points:
        half_width = 0.0 if given else point.half_width
        times.append((point.batch, point.step_time_s.median, half_width))
    return times


class Trial(Record):
    """A batch that was tried for the limit, in a new worker process unless `fresh` is false.

    `memory_peak_bytes` is what the batch took or, if it failed, what it held or asked for.
    """

    batch: Size
    outcome: Outcome
    seconds: Annotated[Number, Shown("took", "s")]
    reason: str
    fresh: Annotated[bool, Shown("in a fresh worker")] = True
    memory_peak_bytes: Count | None = None


class BatchLimit(Record):
    """The largest batch that trains, and the smallest batch that was tried and does not train.

    `fits` is null if not even a batch of 1 trains, `fails` if every batch up to `max_batch` trains.
    With a `plateau` no larger one was looked for: steps took long, and throughput did not rise from
    that batch on.
    `memory_bytes` is what the device's allocator may take, less the margin; `needed_bytes` is what
    the failing batch asked for. Both are null if unknown.
    """

    fits: Annotated[Size | None, Shown("trains")]
    fails: Annotated[Size | None, Shown("does not")]
    max_batch: Annotated[Samples, Shown("looked up to")]
    plateau: Annotated[Samples | None, Shown("throughput rises to")] = None
    memory_bytes: Annotated[Count | None, Shown("memory limit")]
    needed_bytes: Annotated[Count | None, Shown("the next one asked for")]
    trials: tuple[Trial, ...]


class StepTimeModel(Record):
    """A step of b samples takes alpha_s + beta_s · b seconds.

    `residual` is the line's largest relative deviation. `planned_with` says what a planner uses:
    the line or, if its residual is above 3 % or a batch takes clearly longer than a larger one, the
    measured `curve`: (batch, seconds) pairs with straight lines between them. It is made monotone
    where it falls by no more than measuring is exact to.
    """

    alpha_s: Annotated[Number, Field(ge=0), Shown("α")]
    beta_s: Annotated[Number, Field(ge=0), Shown("β a sample", "µs")]
    residual: Annotated[Part, Field(ge=0), Shown("off by at most")]
    planned_with: Literal["line", "curve"]
    curve: Annotated[tuple[tuple[Size, Positive], ...], Field(min_length=1)] | None

    @model_validator(mode="after")
    def _sound(self) -> StepTimeModel:
        if not self.alpha_s + self.beta_s > 0:
            raise ValueError("a step must take time")
        batches = [batch for batch, _ in self.curve or ()]
        if batches != sorted(set(batches)):
            raise unsound("curve", "its batches must rise")
        if self.planned_with == "curve" and self.curve is None:
            raise unsound("curve", "there is none")
        return self

    @property
    def planned(self) -> Line | Curve:
        """The model that a planner uses."""
        if self.curve is None:
            return Line(self.alpha_s, self.beta_s, self.residual)
        return Curve.through(self.curve)


class SoloRate(Record):
    """Samples per second that a device gives alone at a batch."""

    batch: Size
    throughput: Positive


class Failure(Record):
    """Why a device's probe stopped early, or that a worker died, with the command's exit code."""

    exit_code: Count
    message: str

    @classmethod
    def of(cls, error: GpubalanceError) -> Failure:
        """The record of an error."""
        return cls(exit_code=error.exit_code, message=error.message)


class DeviceProbe(Record):
    """What one device can do alone. `device` is its place in the result's devices.

    `sensible` is the smallest batch from which throughput stays within 5 % of the best.
    `flops_per_sample` is for a training step, null if that has long operations that are not
    counted; `flops_per_s`, `mfu` and `samples_per_joule` are at the solo best. `update_s` is the
    part of every step in which the weights are updated, whatever the batch. It is null if it was
    not measured: a planner then takes it as 0 and the whole step as compute. `on_line`: no octave
    of the curve is off the line by more than its interval or 1 %, so none was divided. `measured_s`
    is the time spent in measured steps, `elapsed_s` that of the whole probe.

    `with_xla` is its best batch once with XLA, as Keras runs one GPU by itself; null if that was
    not measured: only the best device is, and only without --xla.

    With `same_as` the device was not probed: the figures are those of the device of that label,
    which equals it.
    """

    device: Count
    same_as: Annotated[str | None, Shown("not probed, equal to")] = None
    curve: tuple[CurvePoint, ...]
    batch_limit: BatchLimit | None
    step_time_model: StepTimeModel | None
    update_s: Annotated[Number, Field(ge=0)] | None = None
    solo_best: Annotated[SoloRate | None, Shown("best alone")]
    sensible: Annotated[SoloRate | None, Shown("within 5 % of it")]
    with_xla: CurvePoint | None = None
    flops_per_sample: Annotated[Number | None, Shown("FLOP a sample")] = None
    flops_per_s: Annotated[Number | None, Shown("at its best", "FLOP/s")] = None
    peak_flops_per_s: Annotated[Number | None, Shown("peak", "FLOP/s")] = None
    mfu: Annotated[Part | None, Shown("MFU")] = None
    samples_per_joule: Annotated[Number | None, Shown("energy", "samples/J")] = None
    steady: bool
    on_line: bool | None = None
    measured_s: Annotated[Number, Shown("in measured steps", "s")]
    elapsed_s: Annotated[Number, Shown("in all", "s")]
    children: Annotated[Count, Shown("workers")]
    overhead: Overhead | None = None
    failures: tuple[Failure, ...]
    complete: bool

    @property
    def xla_ratio(self) -> float | None:
        """How many times its best alone it gives with XLA; None if that was not measured."""
        if self.with_xla is None or self.solo_best is None:
            return None
        return self.with_xla.throughput.median / self.solo_best.throughput

    @property
    def alone(self) -> float | None:
        """The best samples per second of the device alone, with XLA if that is faster."""
        if self.solo_best is None:
            return None
        return self.solo_best.throughput * max(1.0, self.xla_ratio or 1.0)


def not_probed_text(label: str, same_as: str) -> str:
    """`GPU:1: not probed: equal to GPU:0; --each probes it`."""
    return f"{label}: not probed: equal to {same_as}; --each probes it"


class Probe(OfModel):
    """Each device, measured alone. `parallel` means that all were measured at the same time.

    `code` is a hash of the files of the user's own model and data; empty for built-in ones.
    `own_batch` is the number of samples in the batches of the user's data, `samples` that of an
    epoch; null without any, or if it is unknown. With `own_batch_stays` these batches differ in
    shape, and `split.fit` leaves them as they are. `pipeline` is the user's input pipeline,
    compared with the solo sum in global batches of the devices' best batches; null for random
    samples, or if it was not measured.
    """

    kind: Literal["probe"] = "probe"
    code: str = ""
    own_batch: Size | None = None
    own_batch_stays: bool = False
    samples: Count | None = None
    batch_multiple: Size
    margin_bytes: Margin
    max_batch: Size | None
    parallel: bool
    probes: tuple[DeviceProbe, ...]
    pipeline: InputPipeline | None = None
    complete: bool
    warnings: tuple[Warning_, ...]

    @property
    def overhead(self) -> Overhead:
        """Of all devices' workers."""
        known = [one.overhead for one in self.probes if one.overhead is not None]
        return sum(known, Overhead())

    @property
    def is_of_times(self) -> bool:
        """Whether it stands for step times that somebody measured elsewhere."""
        return self.environment is None and self.model is None and self.complete

    @model_validator(mode="after")
    def _sound(self) -> Probe:
        check_distinct(self.devices)
        return self
