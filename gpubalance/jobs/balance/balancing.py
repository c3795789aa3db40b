"""The course of a balance: round after round, then the proof, until the best split is proven."""

from __future__ import annotations

from gpubalance.errors import PartialResult
from gpubalance.jobs.balance.next_split import next_split
from gpubalance.jobs.balance.packs import choose_packs
from gpubalance.jobs.balance.proof import prove
from gpubalance.jobs.balance.result import result_of, result_so_far
from gpubalance.jobs.balance.rounds import BalanceRounds
from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.events import Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.measure.pipeline import held_against, measure_pipeline
from gpubalance.jobs.measure.trace import trace
from gpubalance.jobs.plan.estimates import DeviceEstimates
from gpubalance.jobs.plan.measured_split import MeasuredSplit
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.run import InputPipeline, Run, alone_in_use
from gpubalance.settings.requests import BalanceRequest
from gpubalance.settings.shares import Shares
from gpubalance.workers.party import Party


class Balancing:
    """Tries splits until none promises more than was measured, and proves the best.

    `party` is regrouped for each split; its owner ends it. A new probe has told what it found of
    the model.
    """

    def __init__(
        self,
        request: BalanceRequest,
        probe: Probe,
        party: Party,
        watch: Watch,
        journal: Journal,
        *,
        model_is_told: bool = True,
    ) -> None:
        # The probe's own settings do not say how gradients are summed, which takes memory.
        as_asked = probe.model_copy(update={"settings": request.settings})
        self.known = DeviceEstimates(as_asked, request.devices, request.plan)
        self.together = Together(request, probe.model, party, watch, model_is_told)
        self.rounds = BalanceRounds(probe, self.known, self.together, journal)
        self.packs_are_chosen = False
        self.pipeline: InputPipeline | None = None

    def run(self) -> Plan:
        """Goes on until the best split is proven: a proof may show that another one is the best."""
        while True:
            planned = None
            if not self.rounds.are_over:
                planned = next_split(self.known, ran_out=self.rounds.ran_out > 0)
            best = self.known.best()
            if planned is not None:
                self.rounds.try_split(planned)
            elif best is None:
                raise PartialResult(
                    f"every split that was tried ran out of memory, {self.rounds.ran_out} of them",
                    remedy="--margin keeps more memory free, --rounds tries more",
                )
            elif best.run is not None:
                self._finish(best.planned.split, best.run)
                return result_of(self.rounds, best, self.pipeline)
            elif not self.packs_are_chosen:
                self._choose_packs(best)
            else:
                prove(self.rounds, best.planned)

    def so_far(self) -> Plan | None:
        """The plan of the best split that was found so far; None before anything was measured."""
        return result_so_far(self.rounds, self.pipeline)

    def _choose_packs(self, best: MeasuredSplit) -> None:
        """Goes on with the size of packs that is best for this split, and with what it gave."""
        self.packs_are_chosen = True
        split = best.planned.split
        round_s = self.together.request.round_s
        journal = self.rounds.journal
        found = choose_packs(self.together, journal, split, best.current[-1], round_s)
        if found is not None:
            self.known.forget_together()
            self.known.learn(best.planned, found)

    def _finish(self, split: Shares, proof: Run) -> None:
        """What comes after all measuring of splits: the user's pipeline alone, and a trace."""
        request = self.together.request
        watch = self.together.watch
        # The proof, with batches on the devices, does not show it.
        if request.settings.data is not None:
            solo_sum = alone_in_use(proof.baselines.solo_best, split.batches)
            alone = measure_pipeline(self.together.gather(split), split.global_batch, watch)
            self.pipeline = held_against(alone, proof.throughput, solo_sum)
        if request.tracing is not None:
            party = self.together.gather(split)
            warnings = trace(party, {0: split.without_idle}, request.tracing, watch)
            self.rounds.warnings += warnings
