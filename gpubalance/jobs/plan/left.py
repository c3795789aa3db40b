"""The split of a plan for some of its devices, when others are lost."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from gpubalance.errors import BadInput, NothingFits
from gpubalance.planning.allocate import allocate, with_only
from gpubalance.planning.model import Curve, Line
from gpubalance.planning.problem import Load, NoSplitError, Problem
from gpubalance.planning.sync import Syncs
from gpubalance.results.plan import Plan, Share
from gpubalance.settings.batch_split import BatchSplit


def check_curves(plan: Plan) -> None:
    """Raises BadInput for a plan without the times that another split would follow from."""
    if not plan.curves:
        raise BadInput(
            "--restarts needs the devices' step times, which this plan does not "
            "contain",
            remedy="gpubalance balance makes a plan that contains them",
        )


def split_over(plan: Plan, left: Set[int]) -> BatchSplit:
    """The best split of the plan's global batch over these of its devices, by its measurements.

    If they do not hold that, it is the split of the largest global batch that they hold. Raises
    NothingFits if they hold nothing.
    """
    problem = with_only(_problem(plan), left)
    try:
        return allocate(problem).split
    except NoSplitError as error:
        if error.below is None:
            raise NothingFits(
                "none of the remaining devices has enough memory for a batch of this "
                "plan"
            ) from None
        return allocate(replace(problem, global_batch=error.below)).split


def _problem(plan: Plan) -> Problem:
    used = frozenset(plan.split.used)
    syncs_s = {used: plan.sync_s or 0.0}
    for device in plan.left_out:
        if device.sync_s is not None:
            syncs_s[used | {device.device}] = device.sync_s
    loads = [
        _load(share, curve)
        for share, curve in zip(plan.shares, plan.curves, strict=True)
    ]
    return Problem(
        loads=tuple(loads),
        sync=Syncs(syncs_s),
        multiple=plan.batch_multiple,
        global_batch=plan.global_batch,
        micro_batches=max(plan.split.counts),
    )


def _load(share: Share, curve: tuple[tuple[int, float], ...]) -> Load:
    if not curve:
        return Load(Line(1.0, 0.0, 0.0), 0)
    return Load(Curve.through(curve), share.limit, share.update_s)
