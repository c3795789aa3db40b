"""A plan as text: the split, what binds it, what is predicted, and how to use it."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.numbers.units import format_percent, format_rate, format_seconds
from gpubalance.render.even import largest_even_text, measured_at_largest_even, other_batch
from gpubalance.render.goodput import goodput_lines, maximised_text
from gpubalance.render.pipeline import pipeline_lines
from gpubalance.render.run import imbalance_text, run_lines, step_text
from gpubalance.render.solo_gap import REST, losses
from gpubalance.render.table import WIDTH, prose, shorten, table
from gpubalance.render.worth import epoch_text, most_fed
from gpubalance.results.plan import Balance, LearningRate, LeftOut, Plan, Round, Share
from gpubalance.settings.device import Device
from gpubalance.settings.shares import share_text

_NAME_WIDTH = 26
_MOST_CAUSES = 4
# Why a device has no more samples, to follow its name.
_REASONS = {
    "memory": "is limited by its memory ({limit})",
    "max batch": "was probed no further ({limit})",
    "speed": "could take more, but the others would wait",
    "granularity": "could take more, but not {multiple} more without making the others wait",
    "global batch": "could take more of a larger global batch",
    "sync": "is faster alone",
}
_WAITED_FOR = ("speed", "granularity")  # if all devices have these, nobody would wait


def round_text(tried: Round, devices: Sequence[Device]) -> str:
    """One line: `round 1 [820 568]: 2127 samples/s, predicted 2255` and each device's compute."""
    batches = " ".join(
        share_text(batch, micro) for batch, micro in zip(tried.batches, tried.micro_batches, strict=True)
    )
    head = f"round {tried.number} [{batches}]"
    if tried.measured is None:
        return f"{head}: out of memory"
    measured = tried.measured
    rate, predicted = format_rate(measured.throughput.median), format_rate(tried.predicted_throughput)
    computes = ", ".join(f"{devices[r.device].label} {format_seconds(r.compute_s)}" for r in measured.replicas)
    parts = f"compute {computes}; sync {format_seconds(measured.sync_s)}; imbalance {measured.imbalance:.3f}"
    return f"{head}: {rate} samples/s, predicted {predicted}; {parts}"


def plan_lines(plan: Plan, width: int = WIDTH, epoch: int | None = None) -> list[str]:
    """The answer, each device, and the learning rate; for a plan that was run its measurement, not the prediction."""
    run = plan.balance.run if plan.balance else None
    lines = pipeline_lines(plan.pipeline, plan.predicted.solo_sum, width) if plan.pipeline else []
    if plan.balance is not None and run is not None:
        lines += [
            *run_lines(run, width, epoch, plan.pipeline),
            *prose(_gap(plan, plan.balance), width),
            *prose("; ".join(filter(None, (bounds_text(plan), maximised_text(plan)))), width),
        ]
    else:
        lines += [*_answer(plan, width, epoch), "", *_devices(plan, width), *prose(_step(plan), width)]
        lines += prose(maximised_text(plan), width)
        if plan.balanced is not None:
            lines += prose(f"based on what the balance of {plan.balanced} measured of these devices together", width)
    lines += goodput_lines(plan, width)
    for text in (_at_largest_even(plan), *(_left_out(plan, one) for one in plan.left_out), _accumulation(plan)):
        lines += prose(text, width)
    if plan.learning_rate is not None:
        lines += prose(_advice(plan.learning_rate), width)
    return lines


def _answer(plan: Plan, width: int, epoch: int | None) -> list[str]:
    batches = " ".join(map(str, plan.batches))
    predicted = plan.predicted
    how = "predicted" if plan.balance is None else "from its measurements, not yet proven by a run"
    rate = f"{format_rate(predicted.throughput)} samples/s {how}"
    lines = prose(f"batches {batches}: {rate}, model {plan.settings.model}", width)
    even = predicted.even
    if even is not None and predicted.speedup_over_even is not None:
        ratio, rate = f"{predicted.speedup_over_even:.3f}", f"{format_rate(even.throughput)} samples/s"
        rate += other_batch(plan.global_batch, even.split.global_batch)
        lines += prose(f"{ratio} × the even split {even.split}, which is predicted to give {rate}", width)
    largest = predicted.largest_even
    if largest is not None:
        lines += prose(largest_even_text(largest.split, largest.throughput, plan.batch_multiple), width)
    if predicted.scaling_efficiency is not None:
        efficiency = format_percent(predicted.scaling_efficiency, 1)
        lines += prose(
            f"{efficiency} of what the devices gave alone, {format_rate(predicted.solo_sum)} samples/s in total", width
        )
    if epoch is not None:
        rates = [("the even split", even.throughput)] if even is not None else []
        lines += prose(
            epoch_text(epoch, [*rates, ("this split", predicted.throughput)], most_fed(plan.pipeline)), width
        )
    return lines


def _devices(plan: Plan, width: int) -> list[str]:
    rows: list[tuple[str, ...]] = [("device", "", "batch", "compute", "bound by")]
    for share in plan.shares:
        device = plan.devices[share.device]
        rows.append(
            (
                device.label,
                shorten(device.name, _NAME_WIDTH),
                share_text(share.batch, share.micro_batch),
                f"{format_seconds(share.compute_s)} ({format_percent(share.utilisation)})" if share.batch else "",
                _bound(share),
            )
        )
    return table(rows, left=(0, 1, 4), width=width)


def bounds_text(plan: Plan) -> str:
    """What keeps each device from more samples: `GPU:1 is limited by its memory (640); GPU:0 could take more, …`."""
    alike: dict[str, list[str]] = {}
    shares = [share for share in plan.shares if share.batch]
    in_all = None if any(share.binds not in _WAITED_FOR for share in shares) else _bound_of_all(plan)
    for share in shares:
        reason = in_all or _REASONS[share.binds].format(limit=share.limit, multiple=plan.batch_multiple)
        alike.setdefault(reason, []).append(plan.devices[share.device].label)
    ordered = sorted(alike.items(), key=lambda one: one[0].startswith("could"))
    return "; ".join(f"{', '.join(labels)} {reason}" for reason, labels in ordered)


def _bound_of_all(plan: Plan) -> str:
    """Why devices that finish together, none of them full, have no more."""
    if not any(one.split.global_batch > plan.global_batch for one in plan.predicted.by_global_batch):
        return _REASONS["global batch"]
    what = "samples/s" if plan.predicted.noise_scale is None else "goodput"
    return f"could take more, but no larger global batch promises clearly more {what}"


def _gap(plan: Plan, balance: Balance) -> str:
    """Why the devices gave less together than alone: the causes, the largest first."""
    gap = balance.solo_gap
    if gap is None:
        return ""
    told = sorted(losses(plan.devices, gap, _MOST_CAUSES), key=lambda loss: (loss.cause == REST, -abs(loss.rate)))
    if not told:
        return ""
    causes = ", ".join(f"{loss.text.removeprefix('−')} {loss.cause}" for loss in told)
    return f"lost against the devices alone ({format_rate(gap.solo_sum)} samples/s): {causes}"


def _bound(share: Share) -> str:
    if not share.batch:
        return "left out"
    return f"{share.binds} (up to {share.limit})" if share.binds in ("memory", "max batch") else share.binds


def _step(plan: Plan) -> str:
    predicted, several = plan.predicted, len(plan.split.used) > 1
    slowest = max(plan.shares, key=lambda share: share.compute_s + (share.update_s or 0.0))
    sync_s = predicted.sync_s if several else None
    step = step_text(predicted.step_time_s, slowest.compute_s, slowest.update_s, sync_s)
    return f"{step}; {imbalance_text(predicted.imbalance)}" if several else step


def _left_out(plan: Plan, one: LeftOut) -> str:
    device = plan.devices[one.device]
    if plan.shares[one.device].limit < plan.batch_multiple:
        return f"{device.label} is left out: it has no room for a batch of {plan.batch_multiple}"
    if one.gain is None:
        return f"{device.label} has no samples"
    if one.gain >= 0:
        return f"{device.label} is not worth adding: no faster with it"
    return f"{device.label} is not worth adding: {_percent(-one.gain)} slower with it"


def _at_largest_even(plan: Plan) -> str:
    """What a split gains at the global batch of equal shares in one piece; empty if the even split fits so."""
    run = plan.balance.run if plan.balance else None
    measured = measured_at_largest_even(run.baselines) if run else ""
    even, best = plan.predicted.largest_even, plan.predicted.best_at_largest_even
    if measured or even is None or best is None or best.split == even.split:
        return measured
    return (
        f"at a global batch of {best.split.global_batch}: {best.split} is predicted to be "
        f"{best.throughput / even.throughput:.3f} × as fast as {even.split}"
    )


def _accumulation(plan: Plan) -> str:
    more = plan.accumulation
    if more is None:
        return ""
    what = "samples/s" if plan.predicted.noise_scale is None else "goodput"
    return (
        f"--accumulate auto: {more.split} is predicted to give {_percent(more.gain)} more {what}, "
        f"for a global batch of {more.global_batch}, not {plan.global_batch}"
    )


def _percent(part: float) -> str:
    return format_percent(part, 0 if part >= 0.0995 else 1)


def _sgd(rate: LearningRate) -> str:
    if rate.measured is not None:
        return f"{rate.measured:.3g} with SGD by the noise scale (McCandlish 2018)"
    return f"{rate.linear:.3g} with SGD and a warm-up (Goyal 2017)"


def _advice(rate: LearningRate) -> str:
    if rate.from_batch == rate.to_batch:
        return f"global batch {rate.to_batch}, as before: the learning rate stays"
    return (
        f"learning rate: if tuned at a global batch of {rate.from_batch} (--from-batch says at which), "
        f"times {_sgd(rate)}, {rate.square_root:.3g} with Adam (Malladi 2022)"
    )
