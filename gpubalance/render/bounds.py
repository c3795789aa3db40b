"""Why the devices of a plan have no more samples, or none."""

from __future__ import annotations

from gpubalance.numbers.units import format_percent, format_seconds
from gpubalance.results.plan import LeftOut, Plan

# Why a device has no more samples, to follow its name.
_REASONS = {
    "memory": "is limited by its memory ({limit})",
    "max batch": "was measured no further ({limit})",
    "speed": "could take more, but the others would wait",
    "granularity": "could take more, but not {multiple} more without making the others wait",
    "global batch": "could take more of a larger global batch",
    "sync": "costs more sync than it adds",
}
_WAITED_FOR = {"speed", "granularity"}  # if all devices have these, nobody would wait


def bounds_text(plan: Plan) -> str:
    """`GPU:1 is limited by its memory (640); GPU:0 could take more, …`."""
    shares = [share for share in plan.shares if share.batch]
    all_waited_for = all(share.binds in _WAITED_FOR for share in shares)
    labels_by_reason: dict[str, list[str]] = {}
    for share in shares:
        reason = _REASONS[share.binds].format(
            limit=share.limit, multiple=plan.batch_multiple
        )
        if all_waited_for:
            reason = _bound_of_all(plan)
        labels_by_reason.setdefault(reason, []).append(plan.label(share.device))
    reasons = sorted(labels_by_reason, key=lambda reason: reason.startswith("could"))
    return "; ".join(
        f"{', '.join(labels_by_reason[reason])} {reason}" for reason in reasons
    )


def _bound_of_all(plan: Plan) -> str:
    """Why devices that finish together, none of them full, have no more."""
    splits = [prediction.split for prediction in plan.predicted.by_global_batch]
    if any(split.global_batch > plan.global_batch for split in splits):
        return f"could take more, but no larger global batch promises clearly more {aim_text(plan)}"
    return _REASONS["global batch"]


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
            f"{label} is left out: it has no room for a batch of {plan.batch_multiple}"
        )
    if left_out.gain is None:
        return f"{label} has no samples"
    why = f", as it {_REASONS['sync']}" if share.binds == "sync" else ""
    without = _without(plan, left_out.gain)
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
