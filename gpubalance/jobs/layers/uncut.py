"""Finds out whether the whole model trains on one device, what that gives, and what its batch split
would give.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.errors import BadInput, NothingFits, UsageError
from gpubalance.jobs.balance.reuse import probe_for
from gpubalance.jobs.events import Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.plan.plan import plan
from gpubalance.numbers.units import format_percent, format_rate
from gpubalance.planning.pipeline.timeline import bubble_bound, pipeline_throughput
from gpubalance.results.layers import LayersBaselines, SplitBaseline
from gpubalance.results.probe import Probe
from gpubalance.results.run import SoloBest
from gpubalance.settings.requests import LayersRequest
from gpubalance.system.deadlines import TimeLimit

_NONE_HOLDS = "no device holds the whole model"


def uncut(
    request: LayersRequest, limit: TimeLimit, watch: Watch, journal: Journal
) -> LayersBaselines:
    """What the uncut model gives, by a probe and a balance that used it. Raises what a probe does,
    but NothingFits.

    Raises UsageError if all devices hold it, and the best that layers could give with their rates
    is not more.
    """
    try:
        probe = probe_for(request.uncut, limit, watch, journal)
    except NothingFits as error:
        return LayersBaselines(solo_best_why_not=error.message, split_why_not=_NONE_HOLDS)
    bests = [(one.device, one.solo_best) for one in probe.probes if one.solo_best is not None]
    solo = [SoloBest(device=device, **best.model_dump()) for device, best in bests]
    if not solo:
        told = (failure.message for one in probe.probes for failure in one.failures)
        none = "; ".join(dict.fromkeys(told)) or _NONE_HOLDS
        return LayersBaselines(solo_best_why_not=none, split_why_not=_NONE_HOLDS)
    split, why_not = _split(request, probe, solo)
    best = max(solo, key=lambda one: one.throughput)
    found = LayersBaselines(solo_best=best, split=split, split_why_not=why_not)
    if len(solo) == len(request.devices):
        rates = [one.throughput for one in solo]
        refuse_what_is_faster_uncut(request, found, pipeline_throughput(rates, request.in_a_step))
    return found


def _split(
    request: LayersRequest, probe: Probe, solo: Sequence[SoloBest]
) -> tuple[SplitBaseline | None, str | None]:
    """The batch split over all devices, or why there is none."""
    holding = {one.device for one in solo}
    missing = [
        device.label for number, device in enumerate(request.devices) if number not in holding
    ]
    if missing:
        do_not = "do not" if len(missing) > 1 else "does not"
        return None, f"{' and '.join(missing)} {do_not} hold the whole model"
    try:
        planned = plan(probe, request.devices, request.uncut.plan, request.joint)
    except (NothingFits, BadInput, UsageError) as error:
        return None, error.message
    sizes = {"batches": planned.batches, "micro_batches": planned.micro_batches}
    return SplitBaseline(**sizes, throughput=planned.predicted.throughput, measured=False), None


def refuse_what_is_faster_uncut(
    request: LayersRequest, found: LayersBaselines, layers_at_most: float
) -> None:
    """Raises UsageError if layers can't give more than the uncut model, unless they are forced."""
    if request.force or layers_at_most > found.throughput:
        return
    bubble = format_percent(bubble_bound(len(request.devices), request.in_a_step), 1)
    best, split, told, parts = found.solo_best, found.split, [], ""
    if best is not None:
        told.append(
            f"{request.devices[best.device].label} alone gives {format_rate(best.throughput)}"
        )
    if split is not None:
        told.append(f"the batch split {split.split} {format_rate(split.throughput)} by prediction")
        parts = " --accumulate auto" if split.split.accumulates else ""
    raise UsageError(
        f"{request.settings.model} is better off uncut: layers would give "
        f"{format_rate(layers_at_most)} samples/s at "
        f"best, as {bubble} of each step is bubble; {', '.join(told)}",
        remedy=(
            f"gpubalance balance{parts} finds the best batch split; --force cuts the model all "
            "the same"
        ),
    )
