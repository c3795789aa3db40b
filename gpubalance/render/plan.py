"""A plan as text: the split, what binds it, what is predicted, and how to use it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gpubalance.numbers.units import (
    format_percent,
    format_rate,
    format_seconds,
    three_digits,
)
from gpubalance.planning.noise import efficiency
from gpubalance.render.rates import (
    epoch_text,
    gain_sentences,
    most_fed,
    per_s,
    pipeline_sentences,
    slowed_text,
)
from gpubalance.render.run import (
    gap_table,
    measured_text,
    run_headline,
    run_summary,
    step_text,
)
from gpubalance.render.table import (
    BLANK,
    Paragraph,
    TextTable,
    batch_of,
    device_table,
    names_of,
    sparkline,
)
from gpubalance.results.plan import (
    LearningRate,
    LeftOut,
    Plan,
    Predicted,
    Round,
    SplitPrediction,
)
from gpubalance.settings.batch_split import share_text
from gpubalance.settings.device import Device

# Why a device has no more samples, to follow its name; and the words for one or several devices.
_REASONS = {
    "memory": "{is} limited by {its} memory ({limit})",
    "max batch": "{was} measured only up to {limit}",
    "speed": "could take more, but the others would wait",
    "granularity": "could take more, but {multiple} more would make the others wait",
    "global batch": "could take more with a larger global batch",
    "plateau": "could take more, but no larger global batch gives clearly more {aim}",
    "sync": "would add less {aim} than {its} sync costs",
}
_ONE = {"is": "is", "was": "was", "its": "its"}
_SEVERAL = {"is": "are", "was": "were", "its": "their"}
_WAITED_FOR = {"speed", "granularity"}  # if all devices have these, nobody would wait


def round_text(tried: Round, devices: Sequence[Device]) -> str:
    """One line: `round 1 [820 568]: predicted 2255 samples/s; GPU:0 [820] 1279 samples/s …`."""
    batches = " ".join(map(share_text, tried.batches, tried.micro_batches))
    head = f"round {tried.number} [{batches}]"
    if tried.measured is None:
        return f"{head}: out of memory"
    predicted = per_s(tried.predicted_throughput)
    return f"{head}: predicted {predicted}; {measured_text(devices, tried.measured)}"


def plan_summary(plan: Plan, epoch: int | None = None) -> Iterator[Paragraph]:
    """The answer, each device, and the learning rate; of a plan that was run, what was measured."""
    predicted = plan.predicted
    solo_sum = predicted.solo_sum if plan.run is None else plan.run.solo_sum_in_use
    yield from pipeline_sentences(
        plan.pipeline, solo_sum, time_scale=plan.settings.time_scale
    )
    if plan.run is not None:
        yield from run_summary(plan.run, epoch, plan.pipeline)
        if plan.balance and plan.balance.solo_gap:
            yield from gap_table(plan.devices, plan.balance.solo_gap)
    else:
        yield from _prediction(plan, epoch)
    yield bounds_text(plan)
    if predicted.noise_scale is None and predicted.by_global_batch:
        yield "this maximises samples/s only; --noise-scale also considers learning progress"
    if predicted.best_at_even is not None:
        yield _at_even(predicted.best_at_even)
    if predicted.noise_scale is not None:
        yield from _goodput(predicted, predicted.noise_scale)
    for left_out in plan.left_out:
        yield left_out_text(plan, left_out)
    yield _accumulation(plan)
    yield own_batch_text(plan)
    yield _advice(plan)


def plan_headline(plan: Plan) -> str:
    """What the split gives: as measured if it was run, else as predicted."""
    if plan.run is not None:
        return run_headline(plan.run)
    how = "predicted"
    if plan.balance is not None:
        how = "from its measurements, not yet proven by a run"
    batches = " ".join(map(str, plan.batches))
    rate = per_s(plan.predicted.throughput)
    model = f"model {plan.settings.model}{slowed_text(plan.settings)}"
    return f"batches {batches}: {rate} {how}, {model}"


def _prediction(plan: Plan, epoch: int | None) -> Iterator[Paragraph]:
    predicted = plan.predicted
    gives = "is predicted to give"
    yield plan_headline(plan)
    yield from gain_sentences(
        predicted, predicted, plan.split, gives, plan.batch_multiple
    )
    if epoch is not None:
        rates = {}
        if predicted.even is not None:
            rates["the even split"] = predicted.even.throughput
        rates["this split"] = predicted.throughput
        yield epoch_text(epoch, rates, most_fed(plan.pipeline))
    yield BLANK
    leads = {"": names_of(plan.devices), "batch": batch_of}
    yield device_table(plan.devices, plan.shares, leads)
    yield step_text(predicted, plan.shares)
    if plan.balanced:
        yield (
            "corrected by what gpubalance balance measured of these devices together: "
            f"{plan.balanced}"
        )


def _at_even(best: SplitPrediction) -> str:
    """What the best split gives with the even split's global batch, which the plan's is not."""
    rate = per_s(best.throughput)
    same = f"with --global-batch {best.split.global_batch}, like the even split"
    return f"{same}: the split {best.split} is predicted to give {rate}"


def _goodput(predicted: Predicted, noise_scale: float) -> Iterator[Paragraph]:
    """Each split's goodput, and the course over global batches."""
    scale = f"with a gradient noise scale of {three_digits(noise_scale)} samples"
    worth_text = "progress per sample, 100 % in a very small batch"
    yield f"{scale}; goodput = samples/s × efficiency ({worth_text}):"
    rows = [("", "split", "global batch", "samples/s", "efficiency", "goodput")]
    for goodput in predicted.by_goodput:
        split = "/".join(map(str, goodput.batches))
        worth = format_percent(goodput.efficiency, 1)
        rates = (
            format_rate(goodput.throughput),
            worth,
            format_rate(goodput.goodput),
        )
        rows.append((goodput.of, split, str(goodput.global_batch), *rates))
    yield TextTable(rows)
    goodputs: dict[int, float] = {}
    for prediction in predicted.by_global_batch:
        batch = prediction.split.global_batch
        goodputs[batch] = prediction.throughput * efficiency(batch, noise_scale)
    if len(goodputs) > 1:
        ticks = sparkline(list(goodputs.values()), minimum=0.0)
        yield f"goodput at global batches of {min(goodputs)} to {max(goodputs)}: {ticks}"


def _accumulation(plan: Plan) -> str:
    more = plan.accumulation
    if more is None:
        return ""
    gain = f"{gain_percent(more.gain)} more {aim_text(plan)}"
    batches = (
        f"with a global batch of {more.global_batch} instead of {plan.global_batch}"
    )
    return f"--accumulate auto: {more.split} is predicted to give {gain}, {batches}"


def _keeping(own: int, plan: Plan) -> str:
    """The options with which a balance keeps the user's own global batch."""
    text = f"--global-batch {own}"
    if own % plan.batch_multiple:
        text += f" --batch-multiple {math.gcd(own, plan.batch_multiple)}"
    return text


def own_batch_text(plan: Plan) -> str:
    """What becomes of the user's own batches and learning rate; empty if they stay."""
    own = plan.own_batch
    new = plan.global_batch
    if own is None or own == new:
        return ""
    if plan.wants_larger_batches:
        return (
            f"your batches of {own} differ in shape, so split.fit uses them as they "
            f"are. To train with {new}, make batches of that size in the dataset "
            "(batch or padded_batch); until then the learning rate stays. Or balance "
            f"with {_keeping(own, plan)}"
        )
    if new > own:
        steps = f"{three_digits(new / own)} × fewer"
    else:
        steps = f"{three_digits(own / new)} × more"
    text = f"your batch of {own} → {new}: {steps} steps an epoch"
    rate = plan.learning_rate
    if rate and rate.from_batch == own:
        text += f", learning rate × {_factors(rate)}"
    text += f"; {_keeping(own, plan)} keeps it"
    best = plan.predicted.best_at_own
    if best:
        text += f" and is predicted to give {per_s(best.throughput)}"
        used = [plan.devices[number].label for number in best.split.used]
        if len(used) < len(plan.split.used):
            alone = " alone" if len(used) == 1 else " only"
            text += f" on {' and '.join(used)}{alone}"
    return text


def _advice(plan: Plan) -> str:
    """How to change the learning rate, unless that was said with the user's own batch."""
    rate = plan.learning_rate
    if rate is None or rate.from_batch == plan.own_batch != plan.global_batch:
        return ""
    if plan.wants_larger_batches:
        return ""
    if rate.from_batch == rate.to_batch:
        return f"global batch {rate.to_batch} as before: keep the learning rate"
    tuned = (
        f"if yours was tuned for batch {rate.from_batch}, multiply by {_factors(rate)}"
    )
    return f"learning rate: {tuned}; otherwise pass --from-batch"


def _factors(rate: LearningRate) -> str:
    """`1.25 (SGD with warm-up) or 1.12 (Adam)`."""
    sgd = f"{rate.linear:.3g} (SGD with warm-up)"
    if rate.measured is not None:
        sgd = f"{rate.measured:.3g} (SGD, by the noise scale)"
    return f"{sgd} or {rate.square_root:.3g} (Adam)"


def bounds_text(plan: Plan) -> str:
    """`GPU:1 is limited by its memory (640); GPU:0 could take more, …`."""
    shares = [share for share in plan.shares if share.batch]
    all_waited_for = all(share.binds in _WAITED_FOR for share in shares)
    labels_by_reason: dict[str, list[str]] = {}
    for share in shares:
        binds = _bound_of_all(plan) if all_waited_for else share.binds
        reason = _REASONS[binds].replace("{limit}", str(share.limit))
        labels_by_reason.setdefault(reason, []).append(plan.label(share.device))
    texts = []
    for reason in sorted(labels_by_reason, key=lambda text: text.startswith("could")):
        labels = labels_by_reason[reason]
        words = _ONE if len(labels) == 1 else _SEVERAL
        why = reason.format(multiple=plan.batch_multiple, aim=aim_text(plan), **words)
        texts.append(f"{', '.join(labels)} {why}")
    return "; ".join(texts)


def _bound_of_all(plan: Plan) -> str:
    """What binds devices that finish together, none of them full."""
    splits = [prediction.split for prediction in plan.predicted.by_global_batch]
    if any(split.global_batch > plan.global_batch for split in splits):
        return "plateau"
    return "global batch"


def aim_text(plan: Plan) -> str:
    """What the plan maximises."""
    if plan.predicted.noise_scale is None:
        return "samples/s"
    return "goodput"


def left_out_text(plan: Plan, left_out: LeftOut) -> str:
    """Why a device has no samples, and what it would change."""
    label = plan.label(left_out.device)
    share = plan.shares[left_out.device]
    if share.limit < plan.batch_multiple:
        return (
            f"{label} is left out: it has no memory for a batch of "
            f"{plan.batch_multiple}"
        )
    if left_out.gain is None:
        return f"{label} has no samples"
    by_goodput = plan.predicted.noise_scale is not None
    why = ""
    if share.binds == "sync":
        aim = "goodput" if by_goodput else "throughput"
        why = f", as it {_REASONS['sync'].format(aim=aim, **_ONE)}"
    without = _without(plan, left_out.gain)
    if by_goodput:
        without += ", by goodput"
    return f"{label} is left out{why}: {without}{_syncs(plan, left_out.sync_s)}"


def _without(plan: Plan, gain: float) -> str:
    """By how much the devices in use are faster without another one."""
    if gain >= 0:
        return "no faster with it"
    times = 1 / (1 + gain)
    faster = f"{gain_percent(times - 1)} faster"
    if times >= 2:
        faster = f"{times:.1f} times as fast"
    first, *others = plan.split.used
    if others:
        return f"{faster} without it"
    return f"{plan.label(first)} is {faster} alone"


def _syncs(plan: Plan, with_it_s: float | None) -> str:
    """The sync with a device that is left out, and without it, where that is less."""
    without_s = plan.predicted.sync_s
    if with_it_s is None or with_it_s <= without_s:
        return ""
    without = f", {format_seconds(without_s)} without" if without_s else ""
    return f" (sync {format_seconds(with_it_s)} with it{without})"


def gain_percent(part: float) -> str:
    """`5.3 %`, and `12 %` from 10 % on."""
    digits = 0 if part >= 0.0995 else 1
    return format_percent(part, digits)
