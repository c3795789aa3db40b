"""`layers` as a whole: the uncut model, its blocks, then the best cut of it, found and proven."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from gpubalance.devices.machine import environment
from gpubalance.errors import BadInput, NothingFits, OutOfMemory, UsageError
from gpubalance.jobs.balance.balance import probe_for
from gpubalance.jobs.balance.joint_workers import JointWorkers
from gpubalance.jobs.balance.rounds import measure_split
from gpubalance.jobs.endings import attach_partial, raising_gpu_lost
from gpubalance.jobs.events import Doing, PhaseBegun, Watch
from gpubalance.jobs.journal import Journal
from gpubalance.jobs.layers.costs import BlockCosts, model_facts, time_blocks
from gpubalance.jobs.layers.rounds import (
    CutRounds,
    MeasuredCut,
    blocks,
    stages,
    usual_timeline,
)
from gpubalance.jobs.measure import figures
from gpubalance.jobs.measure.figures import stamp_cost
from gpubalance.jobs.measure.measurer import group_for
from gpubalance.jobs.measure.warnings import of_figures, resumed, telemetry_ended
from gpubalance.jobs.plan.plan import plan
from gpubalance.jobs.saved import solo_best_of
from gpubalance.numbers.stats import mean
from gpubalance.numbers.units import format_percent, format_rate
from gpubalance.planning.pipeline.problem import (
    Graph,
    bubble_bound,
    least_bubble,
    pipeline_throughput,
)
from gpubalance.results.common import Model, Warning_, now
from gpubalance.results.layers import (
    Layers,
    LayersBaselines,
    PredictedStep,
    SplitBaseline,
)
from gpubalance.results.probe import Probe
from gpubalance.results.run import SoloBest
from gpubalance.results.warnings import warning
from gpubalance.settings.requests import LayersRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Ready

_NONE_HOLDS = "no device holds the whole model"


def uncut(
    request: LayersRequest,
    graph: Graph,
    limit: TimeLimit,
    watch: Watch,
    journal: Journal,
) -> LayersBaselines:
    """What the uncut model gives, by a probe and a balance that used it.

    Raises what a probe does, but NothingFits; and UsageError if all devices hold it, and the best
    that layers with this graph could give with their rates is not more.
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
        at_most = sum(rates)  # branches may keep all devices busy
        if graph.is_row:
            at_most = pipeline_throughput(rates, request.in_a_step)
        refuse_what_is_faster_uncut(request, graph, baselines, at_most)
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
    request: LayersRequest,
    graph: Graph,
    baselines: LayersBaselines,
    layers_at_most: float,
) -> None:
    """Raises UsageError if layers can't give more than the uncut model, unless they are forced."""
    if request.force or layers_at_most > baselines.throughput:
        return
    why = ""
    if graph.is_row:
        bubble = format_percent(
            least_bubble(len(request.devices), request.in_a_step), 1
        )
        why = (
            f", because devices would be idle for at least {bubble} of each step (the "
            "bubble)"
        )
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
        f"most {format_rate(layers_at_most)} samples/s{why}; {', '.join(uncut_rates)}",
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


def result_so_far(
    rounds: CutRounds, facts: Ready, baselines: LayersBaselines
) -> Layers | None:
    """The result of what was measured so far; None before the first round."""
    cut = rounds.latest
    if cut is None:
        return None
    return result_of(rounds, cut, facts, baselines)


def result_of(
    rounds: CutRounds,
    cut: MeasuredCut,
    facts: Ready,
    baselines: LayersBaselines,
    *,
    complete: bool = False,
) -> Layers:
    """The result of that cut, with how it was found.

    `baselines` are what the uncut model gives, `facts` what a worker says of model and software.
    """
    request = rounds.request
    windows = cut.windows
    placed = cut.placed
    problem = placed.problem
    measured_stages = tuple(stages(cut))
    step_s = figures.median_step_s(windows)
    rate = figures.throughput_of(problem.global_batch, figures.step_times_s(windows))
    idle = [(stage.bubble_s + stage.transfer_s) / step_s for stage in measured_stages]
    return Layers(
        created=now(),
        settings=request.settings,
        environment=environment(request.driver),
        model=facts.model,
        devices=request.devices,
        cuts=request.cuts,
        blocks=tuple(blocks(placed)),
        stages=measured_stages,
        micro_batch=problem.micro_batch,
        micro_batches=problem.micro_batches,
        global_batch=problem.global_batch,
        step_time_s=figures.step_time(windows, figures.began_s(windows)),
        throughput=rate,
        predicted=PredictedStep(step_time_s=placed.step_time_s, ci95=placed.ci95),
        bubble=mean(idle),
        bubble_bound=bubble_bound(len(measured_stages), problem.micro_batches),
        timeline=usual_timeline(windows),
        baselines=baselines,
        rounds=tuple(rounds.records),
        warmup_steps=cut.measurer.warm_up_of(cut.workload).steps,
        steps=figures.step_count(windows),
        stamp_cost=stamp_cost(windows),
        speedup_over_split=baselines.split and rate.median / baselines.split.throughput,
        forced=request.force and bool(baselines.throughput),
        complete=complete,
        warnings=tuple(_warnings(rounds, cut)),
    )


def _warnings(rounds: CutRounds, cut: MeasuredCut) -> Iterator[Warning_]:
    yield from resumed(rounds.resumed, "rounds")
    if cut is rounds.proof:
        yield from resumed(cut.windows_resumed)
    devices = rounds.request.devices
    if devices[0].profile is not None:
        yield warning("shares-assumed")
    yield from of_figures(
        rounds.request.settings,
        figures.throttled_gpus(devices, cut.windows),
        [cut.windows],
        steady=cut.measurer.warm_up_of(cut.workload).steady,
    )
    yield from telemetry_ended(cut.measurer.telemetry_ended())


def layers(request: LayersRequest, watch: Watch, journal: Journal) -> Layers:
    """The best cut of the request's model, found and proven by running it.

    Blocks, rounds and windows go into the `journal`; those that are already in it are not measured
    again. Raises Refused for a model that can't be cut, UsageError for one that is better off
    uncut, NothingFits if no cut fits, and what a probe and a worker do; with what was measured
    before as `partial`.
    """
    limit = TimeLimit(request.measuring.time_limit_s)
    journal.watch = watch
    with raising_gpu_lost(request.devices), _no_help_of(journal), ExitStack() as opened:
        alone = []
        for device in request.devices:
            worker_group = group_for(request, watch, limit, device, purpose="layers")
            alone.append(opened.enter_context(worker_group))
        together = opened.enter_context(group_for(request, watch, limit))
        facts = model_facts(alone[0], journal)
        assert facts.graph is not None  # noqa: S101  (of a model that is built to be cut)
        graph = facts.graph
        baselines = uncut(request, graph, limit, watch, journal)
        watch(PhaseBegun("blocks"))
        measured = time_blocks(
            request, len(graph.blocks), journal, alone, together, watch
        )
        known = BlockCosts(request, graph, measured)
        best = known.best()
        refuse_what_is_faster_uncut(request, graph, baselines, best.throughput)
        rounds = CutRounds(request, known, together, journal, watch)
        with attach_partial(lambda: result_so_far(rounds, facts, baselines)):
            proof = rounds.find_and_prove()
            baselines = with_split_measured(rounds, baselines, facts.model, limit)
        return result_of(rounds, proof, facts, baselines, complete=True)


@contextmanager
def _no_help_of(journal: Journal) -> Iterator[None]:
    """Makes what is refused in the block not offer --resume.

    With the journal it would be refused again.
    """
    try:
        yield
    except (UsageError, NothingFits):
        journal.helps = False
        raise
