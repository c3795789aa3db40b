"""`layers`: cuts a model over several devices, runs it as a pipeline, corrects the cut by
measurements, proves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import cast

from gpubalance.errors import NothingFits, OutOfMemory, PartialResult, UsageError
from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.endings import attach_partial, lost_gpus_told
from gpubalance.jobs.environment import environment
from gpubalance.jobs.events import CutDone, Doing, PhaseBegun, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.layers.blocks import time_blocks
from gpubalance.jobs.layers.costs import BlockCosts
from gpubalance.jobs.layers.cut import (
    MeasuredCut,
    blocks,
    cut_text,
    stages,
    subject_of,
    timelines,
    usual_timeline,
)
from gpubalance.jobs.layers.uncut import refuse_what_is_faster_uncut, uncut
from gpubalance.jobs.measure.figures import (
    began_s,
    step_count,
    step_time,
    step_times_s,
    throttled_gpus,
    throughput_of,
    usual_s,
)
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.party import party_for
from gpubalance.jobs.measure.stamps import stamp_cost
from gpubalance.jobs.measure.stopping import StoppingRule
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
        measured = time_blocks(request, len(facts.graph.blocks), journal, alone, together, watch)
        known = BlockCosts(request, facts.graph, measured)
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
    tried: set[str] = field(default_factory=set)
    rounds_resumed: int = 0  # that an interrupted command left
    best: tuple[float, Placement] | None = None  # the measured throughput
    latest: MeasuredCut | None = None  # of a round
    proof: MeasuredCut | None = None
    complete: bool = False

    def run(self) -> Layers:
        """Tries cuts until none promises more than was measured, and proves the best. An error has
        what was found.
        """
        with attach_partial(self._result):
            while not self._prove(self._best_of_rounds()):
                pass
            self._measure_split()
            self.complete = True
        return cast("Layers", self._result())  # it was proven

    def _best_of_rounds(self) -> Placement:
        """Tries cuts, and returns the best of them for the proof."""
        while self.best is None or len(self.rounds) - self._failed < self.request.rounds:
            placed = self.known.best()
            cut = self._cut(placed, "round")
            if self.best is not None:
                least = 1 + max(_WORTH_A_ROUND, placed.off or 0.0)
                if cut.subject.name in self.tried or placed.throughput <= least * self.best[0]:
                    break
            self._try(cut)
        return self.known.corrected(self.best[1])

    def _cut(self, placed: Placement, what: str) -> MeasuredCut:
        """A cut that is not measured yet; its windows are kept as those of `what`."""
        subject = subject_of(placed, self.request.devices)
        return MeasuredCut(placed, subject, Measurer(self.party, self.journal, self.watch, what))

    def _try(self, cut: MeasuredCut) -> None:
        """Measures a cut for a moment, unless an interrupted command has done so."""
        self.tried.add(cut.subject.name)
        self.watch(PhaseBegun("rounds"))
        text = cut_text(cut.placed, self.request.devices)
        self.watch(Doing(f"round {len(self.rounds) + 1}: {text}"))
        try:
            cut.measurer.take((cut.subject,), StoppingRule.at_most(self.request.round_s))
        except OutOfMemory as error:
            self._ran_out(cut.placed, error.replica)
            return
        self.latest = cut
        self.rounds_resumed += cut.measurer.resumed[(cut.subject,)]
        self._note(cut.placed, usual_s(cut.windows))
        times_s = step_times_s(cut.windows)
        rate = throughput_of(cut.placed.problem.global_batch, times_s).median
        if self.best is None or rate > self.best[0]:
            self.best = rate, cut.placed
        self.known.learn(cut.placed, timelines(cut.windows), times_s)

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
        """Measures a cut in windows; False if it ran out of memory."""
        self.watch(PhaseBegun("proof"))
        self.watch(Doing(f"proving {cut_text(placed, self.request.devices)}"))
        self.proof = self._cut(placed, "proof")
        turns = [(self.proof.subject,)]
        try:
            in_turns(self.proof.measurer, turns, self.request.measuring, doing="")
        except OutOfMemory as error:
            self._ran_out(placed, error.replica)
            self.best = self.proof = None
            return False
        return True

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
                together = Together(request, self.facts.model, party, self.watch, self.journal)
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
        cut = self.proof if self.proof is not None and self.proof.windows else self.latest
        if cut is None:
            return None
        request, baselines, windows = self.request, self.baselines, cut.windows
        placed, problem = cut.placed, cut.placed.problem
        measured_stages = tuple(stages(cut))
        step_s = usual_s(windows)
        rate = throughput_of(problem.global_batch, step_times_s(windows))
        idle = [(stage.bubble_s + stage.transfer_s) / step_s for stage in measured_stages]
        return Layers(
            created=now(),
            settings=request.settings,
            environment=environment(request.driver),
            model=self.facts.model,
            devices=request.devices,
            cuts=request.cuts,
            blocks=tuple(blocks(placed)),
            stages=measured_stages,
            micro_batch=problem.micro_batch,
            micro_batches=problem.micro_batches,
            global_batch=problem.global_batch,
            step_time_s=step_time(windows, began_s(windows)),
            throughput=rate,
            predicted=PredictedStep(step_time_s=placed.step_time_s, ci95=placed.ci95),
            bubble=mean(idle),
            bubble_bound=bubble_bound(len(measured_stages), problem.micro_batches),
            timeline=usual_timeline(windows),
            baselines=baselines,
            rounds=tuple(self.rounds),
            warmup_steps=cut.measurer.warm_up_of(cut.subject).steps,
            steps=step_count(windows),
            stamp_cost=stamp_cost(windows),
            speedup_over_split=baselines.split and rate.median / baselines.split.throughput,
            forced=request.force and bool(baselines.throughput),
            complete=self.complete,
            warnings=tuple(self._warnings(cut)),
        )

    def _warnings(self, cut: MeasuredCut) -> Iterator[Warning_]:
        yield from resumed(self.rounds_resumed, "rounds")
        if cut is self.proof:
            yield from resumed(cut.measurer.resumed[(cut.subject,)])
        devices = self.request.devices
        if devices[0].profile is not None:
            yield warning("shares-assumed")
        yield from of_figures(
            self.request.settings.model,
            throttled_gpus(devices, cut.windows),
            [cut.windows],
            steady=cut.measurer.warm_up_of(cut.subject).steady,
        )
