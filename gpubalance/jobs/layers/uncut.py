"""What the uncut model gives: on the best device alone, and by a batch split over all of them."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.errors import BadInput, NothingFits, OutOfMemory, UsageError
from gpubalance.jobs.balance.balance import probe_for
from gpubalance.jobs.balance.joint_workers import JointWorkers
from gpubalance.jobs.balance.rounds import measure_split
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.probes import solo_best_of
from gpubalance.jobs.layers.rounds import CutRounds
from gpubalance.jobs.measure.worker_group import group_for
from gpubalance.jobs.plan.plan import plan
from gpubalance.numbers.units import format_percent, format_rate
from gpubalance.planning.pipeline.timeline import bubble_bound, pipeline_throughput
from gpubalance.results.common import Model
from gpubalance.results.layers import LayersBaselines, SplitBaseline
from gpubalance.results.probe import Probe
from gpubalance.results.run import SoloBest
from gpubalance.settings.requests import LayersRequest
from gpubalance.system.deadlines import TimeLimit

_NONE_HOLDS = "no device holds the whole model"


def uncut(
    request: LayersRequest, limit: TimeLimit, watch: Watch, journal: Journal
) -> LayersBaselines:
    """What the uncut model gives, by a probe and a balance that used it.

    Raises what a probe does, but NothingFits; and UsageError if all devices hold it, and the best
    that layers could give with their rates is not more.
    """
    try:
        probe = probe_for(request.uncut, limit, watch, journal)
    except NothingFits as error:
        return LayersBaselines(
            solo_best_why_not=error.message, split_why_not=_NONE_HOLDS
        )
    solo = []
    failures = []
    for entry in probe.probes:
        failures += [failure.message for failure in entry.failures]
        best = solo_best_of(entry, entry.device)
        if best is not None:
            solo.append(best)
    if not solo:
        why_not = "; ".join(dict.fromkeys(failures)) or _NONE_HOLDS
        return LayersBaselines(solo_best_why_not=why_not, split_why_not=_NONE_HOLDS)
    split, split_why_not = _split(request, probe, solo)
    baselines = LayersBaselines(
        solo_best=max(solo, key=lambda best: best.throughput),
        split=split,
        split_why_not=split_why_not,
    )
    if len(solo) == len(request.devices):
        rates = [best.throughput for best in solo]
        at_most = pipeline_throughput(rates, request.in_a_step)
        refuse_what_is_faster_uncut(request, baselines, at_most)
    return baselines


def _split(
    request: LayersRequest, probe: Probe, solo: Sequence[SoloBest]
) -> tuple[SplitBaseline | None, str | None]:
    """The batch split over all devices, or why there is none."""
    holding = {best.device for best in solo}
    missing = []
    for number, device in enumerate(request.devices):
        if number not in holding:
            missing.append(device.label)
    if missing:
        return None, f"the whole model does not fit on {' and '.join(missing)}"
    try:
        planned = plan(probe, request.devices, request.uncut.plan, request.joint)
    except (NothingFits, BadInput, UsageError) as error:
        return None, error.message
    split = SplitBaseline(
        batches=planned.batches,
        micro_batches=planned.micro_batches,
        throughput=planned.predicted.throughput,
        measured=False,
    )
    return split, None


def refuse_what_is_faster_uncut(
    request: LayersRequest, baselines: LayersBaselines, layers_at_most: float
) -> None:
    """Raises UsageError if layers can't give more than the uncut model, unless they are forced."""
    if request.force or layers_at_most > baselines.throughput:
        return
    bubble = format_percent(bubble_bound(len(request.devices), request.in_a_step), 1)
    uncut_rates = []
    accumulate = ""
    best = baselines.solo_best
    if best is not None:
        label = request.devices[best.device].label
        uncut_rates.append(f"{label} alone gives {format_rate(best.throughput)}")
    split = baselines.split
    if split is not None:
        rate = format_rate(split.throughput)
        uncut_rates.append(f"the batch split {split.split} {rate} by prediction")
        if split.split.accumulates:
            accumulate = " --accumulate auto"
    raise UsageError(
        f"{request.settings.model} is faster uncut: cut into stages it would give at "
        f"most {format_rate(layers_at_most)} samples/s, because devices would be idle "
        f"for {bubble} of each step (the bubble); {', '.join(uncut_rates)}",
        remedy=f"gpubalance balance{accumulate} finds the best batch split; --force "
        "cuts the model anyway",
    )


def with_split_measured(
    rounds: CutRounds, baselines: LayersBaselines, model: Model, limit: TimeLimit
) -> LayersBaselines:
    """The baselines with a measured batch split, if each device holds the model.

    The worker group of the rounds is left without a worker, as the devices are wanted for the
    split.
    """
    split = baselines.split
    if split is None:
        return baselines
    rounds.worker_group.end()

    def measured() -> SplitBaseline:
        return _measured(rounds, split, model, limit)

    changes: dict[str, object] = {"split": None}
    try:
        key = f"batch split {split.split}"
        changes["split"] = rounds.journal.get_or_make(key, SplitBaseline, measured)
    except OutOfMemory as error:
        changes["split_why_not"] = error.message
    return baselines.model_copy(update=changes)


def _measured(
    rounds: CutRounds, split: SplitBaseline, model: Model, limit: TimeLimit
) -> SplitBaseline:
    """The split, with what it gives when it is run for as long as a round."""
    request = rounds.request.uncut
    rounds.watch(Doing(f"measuring the batch split {split.split} of the uncut model"))
    with group_for(request, rounds.watch, limit) as worker_group:
        joint_workers = JointWorkers(
            request, model, worker_group, rounds.watch, rounds.journal
        )
        measurement = measure_split(joint_workers, split.split, rounds.request.round_s)
    rate = measurement.throughput.median
    return split.model_copy(update={"throughput": rate, "measured": True})
