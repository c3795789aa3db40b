"""A plan as text: the split, what binds it, what is predicted, and how to use it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpubalance.numbers.units import format_percent, format_rate, format_seconds, three_digits
from gpubalance.planning.noise import efficiency
from gpubalance.render.fields import device_grid, names_of
from gpubalance.render.rates import gains_told, per_s, pipeline_told
from gpubalance.render.run import (
    epoch_text,
    measured_text,
    most_fed,
    run_headline,
    run_told,
    step_text,
)
from gpubalance.render.table import BLANK, Part, TextTable, sparkline
from gpubalance.results.gap import SoloGap
from gpubalance.results.plan import LearningRate, LeftOut, Plan, Round, SplitPrediction
from gpubalance.settings.device import Device
from gpubalance.settings.shares import share_text

_MOST_CAUSES = 4
_SHOWN = 0.001  # of the solo sum: less is not worth a word or a bar

REST = "the rest"
# Why a device has no more samples, to follow its name.
_REASONS = {
    "memory": "is limited by its memory ({limit})",
    "max batch": "was probed no further ({limit})",
    "speed": "could take more, but the others would wait",
    "granularity": "could take more, but not {multiple} more without making the others wait",
    "global batch": "could take more of a larger global batch",
    "sync": "costs more sync than it adds",
}
_WAITED_FOR = {"speed", "granularity"}  # if all devices have these, nobody would wait


def round_text(tried: Round, devices: Sequence[Device]) -> str:
    """One line: `round 1 [820 568]: predicted 2255 samples/s; GPU:0 [820] 1279 samples/s …`."""
    head = f"round {tried.number} [{' '.join(map(share_text, tried.batches, tried.micro_batches))}]"
    measured = tried.measured
    if measured is None:
        return f"{head}: out of memory"
    return (
        f"{head}: predicted {per_s(tried.predicted_throughput)}; {measured_text(devices, measured)}"
    )


def plan_told(plan: Plan, epoch: int | None = None) -> Iterator[Part]:
    """The answer, each device, and the learning rate; for a plan that was run its measurement, not
    the prediction.
    """
    given = plan.predicted.noise_scale is None and plan.predicted.by_global_batch
    maximised = (
        "this maximises samples/s only; --noise-scale also considers learning progress"
        if given
        else ""
    )
    yield from pipeline_told(plan.pipeline, plan.predicted.solo_sum)
    if plan.run is not None:
        yield from run_told(plan.run, epoch, plan.pipeline)
        yield _gap(plan)
    else:
        yield from _answer(plan, epoch)
        yield BLANK
        leads = {
            "": names_of(plan.devices),
            "batch": lambda one: share_text(one.batch, one.micro_batch),
        }
        yield device_grid(plan.devices, plan.shares, leads)
        yield step_text(plan.predicted, plan.shares)
        yield (
            f"based on what the balance of {plan.balanced} measured of these devices together"
            if plan.balanced
            else ""
        )
    yield bounds_text(plan)
    yield maximised
    yield _at_even(plan.predicted.best_at_even)
    yield from _goodput(plan)
    yield from (_left_out(plan, one) for one in plan.left_out)
    yield _accumulation(plan)
    yield own_batch_text(plan)
    yield _advice(plan)


def plan_headline(plan: Plan) -> str:
    """What the split gives: as measured if it was run, else as predicted."""
    if plan.run is not None:
        return run_headline(plan.run)
    how = "predicted" if plan.balance is None else "from its measurements, not yet proven by a run"
    rate = f"{per_s(plan.predicted.throughput)} {how}"
    return f"batches {' '.join(map(str, plan.batches))}: {rate}, model {plan.settings.model}"


def _answer(plan: Plan, epoch: int | None) -> Iterator[str]:
    predicted = plan.predicted
    yield plan_headline(plan)
    yield from gains_told(
        predicted, predicted, plan.split, "is predicted to give", plan.batch_multiple
    )
    if epoch is not None:
        rates = {"the even split": predicted.even.throughput} if predicted.even is not None else {}
        yield epoch_text(
            epoch, {**rates, "this split": predicted.throughput}, most_fed(plan.pipeline)
        )


def bounds_text(plan: Plan) -> str:
    """What keeps each device from more samples: `GPU:1 is limited by its memory (640); GPU:0 could
    take more, …`.
    """
    alike: dict[str, list[str]] = {}
    shares = [share for share in plan.shares if share.batch]
    of_all = _bound_of_all(plan) if {share.binds for share in shares} <= _WAITED_FOR else ""
    for share in shares:
        reason = of_all or _REASONS[share.binds].format(
            limit=share.limit, multiple=plan.batch_multiple
        )
        alike.setdefault(reason, []).append(plan.label(share.device))
    reasons = sorted(alike, key=lambda reason: reason.startswith("could"))
    return "; ".join(f"{', '.join(alike[reason])} {reason}" for reason in reasons)


def _bound_of_all(plan: Plan) -> str:
    """Why devices that finish together, none of them full, have no more."""
    if not any(
        one.split.global_batch > plan.global_batch for one in plan.predicted.by_global_batch
    ):
        return _REASONS["global batch"]
    return f"could take more, but no larger global batch promises clearly more {_wanted(plan)}"


def _wanted(plan: Plan) -> str:
    return "samples/s" if plan.predicted.noise_scale is None else "goodput"


def _gap(plan: Plan) -> str:
    """Why the devices gave less together than alone: the causes, the largest first."""
    gap = plan.balance and plan.balance.solo_gap
    told = sorted(
        losses(plan.devices, gap, _MOST_CAUSES) if gap else (),
        key=lambda one: (one.cause == REST, -abs(one.rate)),
    )
    causes = ", ".join(f"{loss.text.removeprefix('−')} {loss.cause}" for loss in told)
    return (
        f"lost against the devices alone ({per_s(gap.solo_sum)}): {causes}" if gap and told else ""
    )


def _goodput(plan: Plan) -> Iterator[Part]:
    """Each split's goodput, and the course over global batches; nothing if the noise scale is
    unknown.
    """
    scale = plan.predicted.noise_scale
    if scale is None:
        return
    yield (
        f"by a noise scale of {three_digits(scale)} samples; goodput is samples/s times what each "
        "sample is worth:"
    )
    rows = [("", "split", "global batch", "samples/s", "worth", "goodput")]
    for one in plan.predicted.by_goodput:
        split, worth = "/".join(map(str, one.batches)), format_percent(one.efficiency, 1)
        rate, goodput = format_rate(one.throughput), format_rate(one.goodput)
        rows.append((one.of, split, str(one.global_batch), rate, worth, goodput))
    yield TextTable(rows)
    rates = {one.split.global_batch: one.throughput for one in plan.predicted.by_global_batch}
    if len(rates) > 1:
        ticks = sparkline(
            [rate * efficiency(batch, scale) for batch, rate in rates.items()], least=0.0
        )
        yield f"goodput at global batches of {min(rates)} to {max(rates)}: {ticks}"


def _at_even(best: SplitPrediction | None) -> str:
    """What the best split gives with the even split's global batch, where that is not the plan's
    own.
    """
    if best is None:
        return ""
    batch, rate = best.split.global_batch, per_s(best.throughput)
    return f"the even split's --global-batch {batch}: {best.split}, {rate} predicted"


def _left_out(plan: Plan, one: LeftOut) -> str:
    label = plan.label(one.device)
    if plan.shares[one.device].limit < plan.batch_multiple:
        return f"{label} is left out: it has no room for a batch of {plan.batch_multiple}"
    if one.gain is None:
        return f"{label} has no samples"
    why = f", as it {_REASONS['sync']}" if plan.shares[one.device].binds == "sync" else ""
    return f"{label} is left out{why}: {_without(plan, one.gain)}{_syncs(plan, one.sync_s)}"


def _without(plan: Plan, gain: float) -> str:
    """By how much the devices in use are faster without another one."""
    if gain >= 0:
        return "no faster with it"
    times = 1 / (1 + gain)
    faster = f"{_percent(times - 1)} faster" if times < 2 else f"{times:.1f} times as fast"
    first, *others = plan.split.used
    return f"{faster} without it" if others else f"{plan.label(first)} is {faster} alone"


def _syncs(plan: Plan, with_it_s: float | None) -> str:
    """The sync with a device that is left out, and without it, where that is less."""
    without_s = plan.predicted.sync_s
    if with_it_s is None or with_it_s <= without_s:
        return ""
    without = f", {format_seconds(without_s)} without" if without_s else ""
    return f" (sync {format_seconds(with_it_s)} with it{without})"


def _accumulation(plan: Plan) -> str:
    more = plan.accumulation
    if more is None:
        return ""
    gain = f"{_percent(more.gain)} more {_wanted(plan)}"
    batches = f"for a global batch of {more.global_batch}, not {plan.global_batch}"
    return f"--accumulate auto: {more.split} is predicted to give {gain}, {batches}"


def _percent(part: float) -> str:
    return format_percent(part, 0 if part >= 0.0995 else 1)


def own_batch_text(plan: Plan) -> str:
    """What becomes of the user's own batches and of the learning rate; empty if they stay, or are
    unknown.
    """
    own, new = plan.own_batch, plan.global_batch
    if own in (None, new):
        return ""
    steps = (
        f"{three_digits(new / own)} × fewer" if new > own else f"{three_digits(own / new)} × more"
    )
    rate, kept = plan.learning_rate, plan.predicted.best_at_own
    learning = f", learning rate × {_factors(rate)}" if rate and rate.from_batch == own else ""
    gives = f" and is predicted to give {per_s(kept.throughput)}" if kept else ""
    return (
        f"your batch of {own} → {new}: {steps} steps an epoch{learning}; --global-batch {own} "
        f"keeps it{gives}"
    )


def _advice(plan: Plan) -> str:
    """How to change the learning rate, unless that was told with the user's own batch."""
    rate = plan.learning_rate
    if rate is None or rate.from_batch == plan.own_batch != plan.global_batch:
        return ""
    if rate.from_batch == rate.to_batch:
        return f"global batch {rate.to_batch}, as before: the learning rate stays"
    otherwise = "otherwise pass --from-batch"
    return (
        f"learning rate: if yours was tuned for batch {rate.from_batch}, multiply by "
        f"{_factors(rate)}; {otherwise}"
    )


def _factors(rate: LearningRate) -> str:
    """`1.25 (SGD with warm-up) or 1.12 (Adam)`."""
    sgd = f"{rate.linear:.3g} (SGD with warm-up)"
    if rate.measured is not None:
        sgd = f"{rate.measured:.3g} (SGD, by the noise scale)"
    return f"{sgd} or {rate.square_root:.3g} (Adam)"


class Loss(NamedTuple):
    """A cause, and the samples per second that it costs; below 0 it is a gain."""

    cause: str
    rate: float

    @property
    def text(self) -> str:
        """`−38`, or `+38` for a gain, in samples per second."""
        return f"{'−' if self.rate >= 0 else '+'}{format_rate(abs(self.rate))}"


def losses(devices: Sequence[Device], gap: SoloGap, most: int | None = None) -> tuple[Loss, ...]:
    """The parts that are at least 0.1 % of the solo sum; with `most`, only that many of them, the
    largest.

    What is left stands last, as `REST`, if it adds up to that.
    """
    parts, least = all_losses(devices, gap), _SHOWN * gap.solo_sum
    large = sorted(
        (part for part in parts if abs(part.rate) >= least), key=lambda part: -abs(part.rate)
    )[:most]
    rest = Loss(REST, sum(part.rate for part in parts if part not in large))
    return (
        *(part for part in parts if part in large),
        *([rest] if abs(rest.rate) >= least else []),
    )


def all_losses(devices: Sequence[Device], gap: SoloGap) -> tuple[Loss, ...]:
    """Every part, in order from the solo sum to what the devices give together."""
    parts = {"left out": gap.left_out, "other batches than the best alone": gap.batch_sizes}
    for device, rate in zip(devices, gap.slowdown, strict=True):
        parts[f"{device.label} {'slower' if rate >= 0 else 'faster'} than alone"] = rate
    parts |= {"waiting for the slowest": gap.imbalance, "summing gradients": gap.sync}
    parts |= {"rare slow steps": gap.slow} if gap.slow else {}
    return tuple(map(Loss, parts, parts.values()))
