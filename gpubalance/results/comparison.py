"""The record of a comparison: several results, each compared with the first, the baseline."""

from __future__ import annotations

from typing import Annotated, Literal

from gpubalance.numbers.stats import Verdict
from gpubalance.results.common import (
    Interval,
    Number,
    Part,
    Ratio,
    Result,
    Throughput,
    Warning_,
)
from gpubalance.results.probe import SoloRate
from gpubalance.results.run import StepSpread
from gpubalance.settings.record import Record, Shown

# A plan that was run counts as its run; a plan that was not has only predictions.
Compared = Literal["run", "probe", "prediction", "independent", "layers"]


class ComparedDevice(Record):
    """One device in one result. A field is null if results of this kind do not have it.

    `limit` is the largest (micro-)batch that fits; `alpha_s` and `beta_s` are from a probe's
    step-time model. `solo_throughput` and `contention` are for a device that trained a model of its
    own.
    """

    label: str
    name: str
    uuid: str
    batch: int | None = None
    micro_batch: int | None = None
    throughput: Annotated[Number | None, Shown("samples/s")] = None
    solo_throughput: Annotated[Number | None, Shown("alone")] = None
    contention: Part | None = None
    compute_s: Number | None = None
    update_s: Annotated[Number | None, Shown(has_ratio=False)] = None
    wait_s: Annotated[Number | None, Shown(has_ratio=False)] = None
    memory_peak_bytes: Annotated[int | None, Shown("memory")] = None
    limit: int | None = None
    solo_best: Annotated[SoloRate | None, Shown("best")] = None
    alpha_s: Annotated[Number | None, Shown("α")] = None
    beta_s: Annotated[Number | None, Shown("β", "µs")] = None


class ComparedResult(Record):
    """One file.

    Step time and throughput are the whole split's, null for a probe. `warnings` are of its figures.

    For models that train independently, throughput is their sum at once, and the efficiency is
    relative to the same batches alone.

    `not_quiet` says how its timings show that the machine had other work to do; null if it was
    quiet.
    """

    file: str
    kind: Compared
    created: str
    complete: bool
    batches: tuple[int, ...] | None = None
    micro_batches: tuple[int, ...] | None = None
    throughput: Annotated[Throughput | None, Shown("samples/s")] = None
    step_time_s: Annotated[Number | None, Shown("step")] = None
    step_spread: StepSpread | None = None
    sync_s: Annotated[Number | None, Shown(has_ratio=False)] = None
    imbalance: Ratio | None = None
    speedup_over_even: Annotated[Ratio | None, Shown("× even split")] = None
    even_global_batch: Annotated[int | None, Shown("  its batch", has_ratio=False)] = (
        None
    )
    scaling_efficiency: Annotated[Part | None, Shown("of solo sum")] = None
    devices: tuple[ComparedDevice, ...]
    not_quiet: str | None = None
    warnings: tuple[Warning_, ...]

    @property
    def global_batch(self) -> int | None:
        """Null for a probe, which has no split."""
        return sum(self.batches) if self.batches else None


class Difference(Record):
    """A difference other than the split; null where a result does not say."""

    what: str
    baseline: str | None
    other: str | None


class ThroughputRatio(Record):
    """The ratio of throughput to the baseline's, its 95 % confidence interval, and the verdict.

    `detectable` is the smallest true difference, as a fraction, that would be found nine times in
    ten. All but the value are null if nothing was measured, or with too few timings.
    """

    value: Number
    ci95: Interval
    detectable: Number | None
    verdict: Verdict | None


class PointRatio(Record):
    """A batch size that both curves have, with both throughputs."""

    batch: int
    baseline: Number
    other: Number
    ratio: ThroughputRatio


class DeviceRatio(Record):
    """The same device in both results: its place in each, null if it is missing there.

    For models that train independently, `ratio` compares the throughputs at once. For probes, it is
    the geometric mean over the `points`, the batch sizes that both curves have.
    """

    baseline: int | None
    other: int | None
    ratio: ThroughputRatio | None = None
    points: tuple[PointRatio, ...] = ()


class Against(Record):
    """A result, by its place in `results`, compared with the first; probes only by `devices`."""

    result: int
    same_measurement: bool
    unlike: tuple[Difference, ...]
    ratio: ThroughputRatio | None
    devices: tuple[DeviceRatio, ...]


class Comparison(Result):
    """Several results; each is compared with the first, the baseline, in order."""

    kind: Literal["comparison"] = "comparison"
    results: tuple[ComparedResult, ...]
    against_first: tuple[Against, ...]
