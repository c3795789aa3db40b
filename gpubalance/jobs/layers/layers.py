"""`layers`: cuts a model over several devices, runs it as a pipeline, corrects the cut by
measurements, proves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import cast

from gpubalance.errors import NothingFits, OutOfMemory, PartialResult, UsageError
from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.endings import attach_partial, lost_gpus_told
from gpubalance.jobs.environment import environment
from gpubalance.jobs.events import CutDone, Doing, PhaseBegun, PipeWindowDone, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.layers.blocks import time_blocks
from gpubalance.jobs.layers.costs import BlockCosts
from gpubalance.jobs.layers.series import CutSeries
from gpubalance.jobs.layers.uncut import refuse_what_is_faster_uncut, uncut
from gpubalance.jobs.measure.joint import party_for
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.timings import Window
from gpubalance.jobs.measure.turns import in_turns
from gpubalance.jobs.measure.warnings import of_figures, resumed
from gpubalance.numbers.stats import mean
from gpubalance.planning.pipeline.place import Placement
from gpubalance.planning.pipeline.timeline import bubble_bound
from gpubalance.results.common import Warning_, now
from gpubalance.results.layers import (
    Layers,
    LayersBaselines,
    LayersRound,
    PredictedStep,
    SplitBaseline,
)
from gpubalance.results.warnings import warning
from gpubalance.settings.requests import LayersRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Ready
from gpubalance.workers.party import Party

# A cut that promises less than this part more is not worth a round, nor one whose promise may be
# kept by the best.
_WORTH_A_ROUND = 0.01
_MOST_FAILED = 2  # rounds that run out of memory, for each device


def layers(request: LayersRequest, watch: Watch, journal: Journal) -> Layers:
    """The best cut of the request's model, found and proven by running it.

    Blocks, rounds and windows go into the `journal`; those that are already in it are not measured
    again. Raises Refused for a model that can't be cut, UsageError for one that is better off
    uncut, NothingFits if no cut fits, and what a probe and a worker do; with what was measured
    before as `partial`.
    """
    limit, journal.watch = TimeLimit(request.measuring.time_limit_s), watch
    with lost_gpus_told(request.devices), _no_help_of(journal), ExitStack() as opened:
        each = [
            party_for(request, watch, limit, device, purpose="layers") for device in request.devices
        ]
        alone = [*map(opened.enter_context, each)]
        together = opened.enter_context(party_for(request, watch, limit))
        facts = journal.get_or_make("facts", Ready, lambda: _facts(alone[0]))
        assert facts.graph is not None  # noqa: S101  (of a model that is built to be cut)
        baselines = uncut(request, limit, watch, journal)
        watch(PhaseBegun("blocks"))
        blocks = time_blocks(request, len(facts.graph.blocks), journal, alone, together, watch)
        known = BlockCosts(request, facts.graph, blocks)
        refuse_what_is_faster_uncut(request, baselines, known.best().throughput)
        return LayersJob(request, known, baselines, facts, together, journal, watch, limit).run()


@contextmanager
def _no_help_of(journal: Journal) -> Iterator[None]:
    """Makes what is refused in the block not offer --resume: with the journal it would be refused
    again.
    """
    try:
        yield
    except (UsageError, NothingFits):
        journal.helps = False
        raise


def _facts(party: Party) -> Ready:
    """What a worker of one device says of the model. Raises Refused for one that can't be cut,
    before it is probed.

    The party is left without a worker, as the device is wanted for the probe.
    """
    party.start()
    facts = party.facts
    party.end()
    party.load()
    return facts


@dataclass
class LayersJob:
    """The rounds of a cut model and its proof, with what has been found so far.

    `party` has all devices; its owner ends it. `baselines` are what the uncut model gives, `facts`
    is what a worker says of the model and the software.
    """

    request: LayersRequest
    known: BlockCosts
    baselines: LayersBaselines
    facts: Ready
    party: Party
    journal: Journal
    watch: Watch
    limit: TimeLimit
    rounds: list[LayersRound] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    best: tuple[float, Placement] | None = None  # the measured throughput
    series: CutSeries | None = None
    # Rounds and windows that an interrupted command left.
    again: Counter[str] = field(default_factory=Counter)
    complete: bool = False

    def run(self) -> Layers:
        """Tries cuts until none promises more than was measured, and proves the best. An error has
        what was found.
        """
        with attach_partial(self._result):
            while not self._prove(self._found()):
                pass
            self._measure_split()
            self.complete = True
        return cast("Layers", self._result())  # it was proven

    def _found(self) -> Placement:
        """Tries cuts, and returns the best of them for the proof."""
        while self.best is None or len(self.rounds) - self._failed < self.request.rounds:
            series = CutSeries.of_cut(self.known.best(), self.request.devices)
            least = 1 + max(_WORTH_A_ROUND, series.placed.off or 0.0)
            if self.best and (
                series.key in self.tried or series.placed.throughput <= least * self.best[0]
            ):
                break
            self._try(series)
        return self.known.corrected(self.best[1])

    def _try(self, series: CutSeries) -> None:
        """Measures a cut for a moment, unless an interrupted command has done so."""
        placed = series.placed
        self.tried.append(series.key)
        self.watch(PhaseBegun("rounds"))
        self.watch(Doing(f"round {len(self.rounds) + 1}: {series.text}"))
        try:
            self._look(series, "round", StoppingRule.at_most(self.request.round_s))
        except OutOfMemory as error:
            self._ran_out(placed, error.replica)
            return
        self._note(placed, series.usual_s)
        rate = series.throughput.median
        if self.best is None or rate > self.best[0]:
            self.best = rate, placed
        self.known.learn(placed, series.timelines, series.step_times_s)

    def _look(self, series: CutSeries, what: str, length: StoppingRule) -> None:
        """Adds a window to the series, measured or left by an interrupted command. Raises
        OutOfMemory.
        """
        before = self.journal.reused[Window]

        def measured() -> Window:
            self.party.ask(series.warm_up)
            return self.party.ask(lambda worker: series.window(worker, length))

        series.add(self.journal.get_or_make(f"{what} {series.key}", Window, measured))
        self.again[what.partition(" ")[0]] += self.journal.reused[Window] - before
        self.series = series

    def _ran_out(self, placed: Placement, device: int | None) -> None:
        """Puts less on the device from now on. Raises PartialResult once that has been tried often
        enough.
        """
        self._note(placed, None, device)
        self.known.ran_out(placed, device)
        if self._failed > _MOST_FAILED * len(self.request.devices):
            self.journal.helps = False
            raise PartialResult(
                f"{self._failed} cuts ran out of memory, though they were planned to fit",
                remedy=self.known.what_fits(placed.problem.micro_batch),
            )

    @property
    def _failed(self) -> int:
        """The rounds that ran out of memory."""
        return sum(one.step_time_s is None for one in self.rounds)

    def _note(
        self, placed: Placement, step_time_s: float | None, ran_out: int | None = None
    ) -> None:
        record = LayersRound(
            number=len(self.rounds) + 1,
            segments=placed.segments,
            predicted_s=placed.step_time_s,
            predicted_ci95=placed.ci95,
            outcome="oom" if step_time_s is None else "measured",
            step_time_s=step_time_s,
            ran_out=ran_out,
        )
        self.rounds.append(record)
        self.watch(CutDone(record, self.request.devices, placed.problem.global_batch))

    def _prove(self, placed: Placement) -> bool:
        """Measures a cut in windows, after those of an interrupted command; False if it ran out of
        memory.
        """
        series = CutSeries.of_cut(placed, self.request.devices)
        self.watch(PhaseBegun("proof"))
        self.watch(Doing(f"proving {series.text}"))
        self.again["window"] = 0
        try:
            in_turns(lambda: [series], self._turn, self.request.measuring, list, self.watch)
            return True
        except OutOfMemory as error:
            self._ran_out(placed, error.replica)
            self.best = None
            return False

    def _turn(self, series: CutSeries, number: int, of: int) -> None:
        """Measures a window of the proof, from which on there is a result, and emits its event."""
        self._look(series, f"window {number}", StoppingRule.of_window(self.request.measuring))
        self.watch(PipeWindowDone(number, of, series.throughput.median, series.usual_s))

    def _measure_split(self) -> None:
        """Measures the batch split for a moment, if each device holds the model."""
        split = self.baselines.split
        if split is None:
            return
        self.party.end()

        def measured() -> SplitBaseline:
            request = self.request.uncut
            self.watch(Doing(f"measuring the batch split {split.split} of the uncut model"))
            with party_for(request, self.watch, self.limit) as party:
                together = Together(request, self.facts.model, party, self.watch)
                rate = together.measure(split.split, self.request.round_s).throughput.median
            return split.model_copy(update={"throughput": rate, "measured": True})

        found: dict[str, object] = {"split": None}
        try:
            found["split"] = self.journal.get_or_make(
                f"batch split {split.split}", SplitBaseline, measured
            )
        except OutOfMemory as error:
            found["split_why_not"] = error.message
        self.baselines = self.baselines.model_copy(update=found)

    def _result(self) -> Layers | None:
        """The result of what was measured so far; None before the first round."""
        series, request, baselines = self.series, self.request, self.baselines
        if series is None:
            return None
        placed, problem, stages = series.placed, series.placed.problem, tuple(series.stages())
        split, rate = baselines.split, series.throughput
        return Layers(
            created=now(),
            settings=request.settings,
            environment=environment(request.driver),
            model=self.facts.model,
            devices=request.devices,
            cuts=request.cuts,
            blocks=tuple(series.blocks()),
            stages=stages,
            micro_batch=problem.micro_batch,
            micro_batches=problem.micro_batches,
            global_batch=problem.global_batch,
            step_time_s=series.step_time(series.began_s),
            throughput=rate,
            predicted=PredictedStep(step_time_s=placed.step_time_s, ci95=placed.ci95),
            bubble=mean([(stage.bubble_s + stage.transfer_s) / series.usual_s for stage in stages]),
            bubble_bound=bubble_bound(len(stages), problem.micro_batches),
            timeline=series.usual,
            baselines=baselines,
            rounds=tuple(self.rounds),
            warmup_steps=series.warmup_steps,
            steps=series.steps,
            stamp_cost=series.stamp_cost,
            speedup_over_split=split and rate.median / split.throughput,
            forced=request.force and bool(baselines.throughput),
            complete=self.complete,
            warnings=tuple(self._warnings(series)),
        )

    def _warnings(self, series: CutSeries) -> Iterator[Warning_]:
        yield from resumed(self.again["round"], "rounds")
        yield from resumed(self.again["window"])
        if self.request.devices[0].profile is not None:
            yield warning("shares-assumed")
        yield from of_figures(self.request.settings.model, series.slowed, [series])
