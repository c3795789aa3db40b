"""The record of a plan: a split, the prediction for it, and, after `balance`, its measurement."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gpubalance.planning.problem import Binds
from gpubalance.results.common import (
    Count,
    Environment,
    Interval,
    Number,
    OfModel,
    OfSplit,
    Part,
    Positive,
    Ratio,
    Result,
    Samples,
    Size,
    Warning_,
    check_distinct,
    check_length,
    has_a_split,
    unsound,
    without_former,
)
from gpubalance.results.run import InputPipeline, Measurement, Run, SoloGap
from gpubalance.results.timing import Overhead
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.measuring import Margin
from gpubalance.settings.record import Record, Shown


class Share(Record):
    """One device's part of the split.

    It has `batch` samples in micro-batches of `micro_batch`, 0 if it is left out. `limit` is the
    largest micro-batch that was allowed, `binds` why it has no more samples: "max batch" if no
    larger one was probed. `update_s` follows its compute in every step.
    """

    device: Count
    batch: Samples
    micro_batch: Samples
    limit: Annotated[Count, Shown("up to")]
    compute_s: Annotated[Number, Shown(brief="compute")]
    update_s: Annotated[Number, Field(ge=0)]
    utilisation: Annotated[Part, Shown("computing")]
    binds: Annotated[Literal[Binds, "max batch"], Shown("bound by")]


class SplitPrediction(Record):
    """The prediction for another split; without `micro_batches` each batch is in one piece."""

    batches: tuple[Samples, ...]
    micro_batches: tuple[Samples, ...] | None = None
    step_time_s: Positive
    throughput: Positive

    _is_of_a_split = model_validator(mode="after")(has_a_split)

    @property
    def split(self) -> BatchSplit:
        """The batches and micro-batches as one value."""
        return BatchSplit(self.batches, self.micro_batches or ())


class Goodput(Record):
    """Throughput, efficiency and their product at a global batch; `of` says of which split."""

    of: str
    batches: tuple[Samples, ...]
    global_batch: Size
    throughput: Positive
    efficiency: Annotated[Positive, Shown("a sample's worth", "%")]
    goodput: Annotated[Positive, Shown(unit="samples/s")]


class Predicted(Record):
    """What the step-time models predict.

    `solo_sum` is of all the plan's devices, with samples or without, and `solo_with_xla` whether
    the best of them is faster with XLA, which counts there. `even` has the same global
    batch, or, where that does not fit in one piece, is the largest equal shares that do; then
    `best_at_even` is the best split of their global batch. `best_at_own` is that of the user's own
    batches, if the plan has others, with a batch for each of its devices. `by_global_batch` has the
    fastest split for some global batches that the devices can take, with samples for all the plan's
    devices.

    With a `noise_scale` in samples, `efficiency` is what a sample is worth, `goodput` throughput
    times that, and `by_goodput` has both for the chosen split and for those that it is compared
    with.
    """

    _of_now = model_validator(mode="before")(without_former)

    step_time_s: Positive
    throughput: Positive
    sync_s: Number
    imbalance: Ratio
    even: SplitPrediction | None
    best_at_even: SplitPrediction | None = None
    best_at_own: SplitPrediction | None = None
    speedup_over_even: Annotated[Ratio | None, Shown("× over even")]
    solo_sum: Annotated[Number | None, Shown(unit="samples/s")]
    solo_with_xla: Annotated[bool, Shown("the best alone with XLA")] = False
    scaling_efficiency: Annotated[Part | None, Shown("of the solo sum")]
    by_global_batch: tuple[SplitPrediction, ...] = ()
    noise_scale: Annotated[Positive | None, Shown(unit="samples")] = None
    efficiency: Annotated[Positive | None, Shown("a sample's worth", "%")] = None
    goodput: Annotated[Positive | None, Shown(unit="samples/s")] = None
    by_goodput: tuple[Goodput, ...] = ()


class LeftOut(Record):
    """A device without samples.

    `gain` is the fraction by which it would change throughput, or goodput with a noise scale,
    beside those in use, or in their place if the global batch is too small for all; null if
    unknown. `sync_s` is the sync of the devices in use and it, as measured; null if they were not
    measured together.
    """

    device: Count
    gain: Annotated[Part | None, Shown("throughput or goodput would change by")]
    sync_s: Annotated[Number | None, Shown("sync with it")] = None


class Accumulation(OfSplit):
    """What `--accumulate auto` would give if that is the fraction `gain` more, at least 5 %."""

    global_batch: Count
    gain: Annotated[Positive, Shown(unit="%")]


class LearningRate(Record):
    """The factors for a learning rate that suits `from_batch`.

    Linear is for SGD, the square root for Adam. `measured` is the factor for SGD by the noise
    scale, null if that is unknown.
    """

    from_batch: Annotated[Samples, Shown("from global batch")]
    to_batch: Annotated[Samples, Shown("to global batch")]
    linear: Annotated[Number, Shown("times, with SGD")]
    square_root: Annotated[Number, Shown("times, with Adam")]
    measured: Number | None = None


class Round(OfSplit):
    """A split that `balance` tried. `measured` is null if it ran out of memory."""

    number: Count
    predicted_throughput: Annotated[Number, Shown("predicted")]
    outcome: Literal["measured", "oom"]
    measured: Measurement | None


class Balance(Record):
    """How `balance` found the plan: every split that it tried, and the run of the last one.

    `run` is null if `balance` was stopped before that run. `overhead` is that of its probe,
    unless that is an earlier one, and of its rounds and proofs.
    """

    rounds: tuple[Round, ...]
    run: Run | None
    solo_gap: SoloGap | None
    overhead: Overhead | None = None


# Those that `Split` takes, too
_SPLIT_SETTINGS = ("all_reduce", "pack_bytes", "gradients", "precision", "time_scale")


class Plan(OfSplit, OfModel):
    """A split for these devices, which their UUIDs identify, this model and these settings.

    `sync_s` is that of the devices in use, of all of them if one is used; null if it was unknown
    and taken as 0. `probed` is the time of the probe that the plan is based on; `environment`,
    `code`, `own_batch` and `own_batch_stays` are that probe's. `balanced` is the time of a balance
    whose measurements the plan uses too; null without one, and if the plan is itself a balance's.
    `pipeline` is the user's input pipeline, as the balance or the probe measured it; null for
    random samples. `reached_by` is how its hosts are reached, null if they are this machine; the
    command itself is not kept, as only a command line may name one. `curves` are what the split
    follows from: each device's seconds of compute by batch, empty for one that holds nothing.
    """

    kind: Literal["plan"] = "plan"
    probed: str
    balanced: str | None = None
    code: str = ""
    own_batch: Size | None = None
    own_batch_stays: bool = False
    environment: Environment | None = None
    global_batch: Count
    batch_multiple: Size
    margin_bytes: Margin
    sync_s: Annotated[Number, Field(ge=0)] | None
    shares: tuple[Share, ...]
    predicted: Predicted
    left_out: tuple[LeftOut, ...]
    accumulation: Accumulation | None = None
    learning_rate: LearningRate | None
    warnings: tuple[Warning_, ...]
    pipeline: InputPipeline | None = None
    balance: Balance | None = None
    reached_by: Literal["command", "ray"] | None = None
    curves: tuple[tuple[tuple[Size, Positive], ...], ...] = ()

    @property
    def run(self) -> Run | None:
        """The run that proved the plan; None unless `balance` made it and came to its end."""
        return self.balance.run if self.balance else None

    @property
    def split_arguments(self) -> str:
        """The arguments of `Split` for these GPUs and settings: `[0, 1], [820, 568]`."""
        split = self.split.without_idle
        used = [self.devices[number] for number in self.split.used]
        gpus = [
            device.index if device.host is None else device.called for device in used
        ]
        arguments = f"{gpus}, {list(split.batches)}"
        if split.accumulates:
            arguments += f", micro_batches={list(split.micro_batches)}"
        usual = type(self.settings)()
        for name in _SPLIT_SETTINGS:
            value = getattr(self.settings, name)
            if value != getattr(usual, name):
                arguments += f", {name}={value!r}"
        return arguments

    @property
    def wants_larger_batches(self) -> bool:
        """Whether the user must change the dataset's batches, as `fit` leaves them as they are."""
        return self.own_batch_stays and self.own_batch not in (None, self.global_batch)

    @property
    def complete(self) -> bool:
        """Whether the balance that made it came to its end: the proof, and the user's data."""
        if self.balance is None:
            return True
        data_is_measured = (
            bool(self.pipeline and self.pipeline.held) or not self.settings.data
        )
        return self.run is not None and self.run.complete and data_is_measured

    @model_validator(mode="after")
    def _sound(self) -> Plan:
        count = len(self.devices)
        check_distinct(self.devices)
        check_length("batches", len(self.batches), count)
        check_length("micro_batches", len(self.micro_batches), count)
        if self.global_batch != sum(self.batches):
            raise unsound(
                "global_batch",
                f"{self.global_batch}, but the batches add up to {sum(self.batches)}",
            )
        shares = [
            (share.device, share.batch, share.micro_batch) for share in self.shares
        ]
        if shares != list(
            zip(range(count), self.batches, self.micro_batches, strict=True)
        ):
            raise unsound("shares", "do not match batches and micro_batches")
        used = len(self.split.used)
        for name, devices in {
            "even": used,
            "best_at_even": used,
            "best_at_own": count,
        }.items():
            split = getattr(self.predicted, name)
            if split is not None:
                check_length(f"predicted.{name}.batches", len(split.batches), devices)
        if self.balance and self.balance.solo_gap:
            check_length(
                "balance.solo_gap.slowdown", len(self.balance.solo_gap.slowdown), count
            )
        return self


class Noise(Result):
    """φ in samples, from the last `steps` stamped steps; null if `unknown` says why not."""

    kind: Literal["noise"] = "noise"
    model: str
    noise_scale: Positive | None
    noise_scale_ci95: Interval
    unknown: str = ""
    steps: Count
    global_batch: Size
