"""`layers` as a whole: the uncut model, its blocks, then the best cut of it, found and proven."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gpubalance.errors import NothingFits, UsageError
from gpubalance.jobs.endings import attach_partial, raising_gpu_lost
from gpubalance.jobs.environment import environment
from gpubalance.jobs.events import PhaseBegun, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.layers.blocks import model_facts, time_blocks
from gpubalance.jobs.layers.costs import BlockCosts
from gpubalance.jobs.layers.cut import MeasuredCut, blocks, stages, usual_timeline
from gpubalance.jobs.layers.rounds import CutRounds
from gpubalance.jobs.layers.uncut import (
    refuse_what_is_faster_uncut,
    uncut,
    with_split_measured,
)
from gpubalance.jobs.measure import figures
from gpubalance.jobs.measure.figures import stamp_cost
from gpubalance.jobs.measure.warnings import of_figures, resumed, telemetry_ended
from gpubalance.jobs.measure.worker_group import group_for
from gpubalance.numbers.stats import mean
from gpubalance.planning.pipeline.timeline import bubble_bound
from gpubalance.results.common import Warning_, now
from gpubalance.results.layers import Layers, LayersBaselines, PredictedStep
from gpubalance.results.warnings import warning
from gpubalance.settings.requests import LayersRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Ready


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
    step_s = figures.usual_s(windows)
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
        baselines = uncut(request, limit, watch, journal)
        watch(PhaseBegun("blocks"))
        measured = time_blocks(
            request, len(facts.graph.blocks), journal, alone, together, watch
        )
        known = BlockCosts(request, facts.graph, measured)
        refuse_what_is_faster_uncut(request, baselines, known.best().throughput)
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
