"""The rounds of a cut model, each a cut that is run for a moment, and the proof of the best one."""

from __future__ import annotations

from typing import Literal

from gpubalance.errors import OutOfMemory, PartialResult
from gpubalance.jobs.events import CutDone, Doing, PhaseBegun, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.layers.costs import BlockCosts
from gpubalance.jobs.layers.cut import MeasuredCut, cut_text, timelines, workload_of
from gpubalance.jobs.measure.figures import step_times_s, throughput_of, usual_s
from gpubalance.jobs.measure.joint import measure_interleaved
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.planning.pipeline.place import Placement
from gpubalance.results.layers import LayersRound
from gpubalance.settings.requests import LayersRequest
from gpubalance.workers.worker_group import WorkerGroup

# A cut that promises less than this part more is not worth a round, nor one whose promise may be
# kept by the best.
_WORTH_A_ROUND = 0.01
_MOST_FAILED = 2  # rounds that run out of memory, for each device


class CutRounds:
    """The cuts that were tried so far, and what they have taught of the blocks.

    `worker_group` has all devices; its owner ends it. `records` are the rounds, `measured` the cuts
    of those that did not run out of memory, in order; `proof` is the cut that is proven.
    """

    def __init__(
        self,
        request: LayersRequest,
        known: BlockCosts,
        worker_group: WorkerGroup,
        journal: Journal,
        watch: Watch,
    ) -> None:
        self.request = request
        self.known = known
        self.worker_group = worker_group
        self.journal = journal
        self.watch = watch
        self.records: list[LayersRound] = []
        self.measured: list[MeasuredCut] = []
        self.proof: MeasuredCut | None = None
        self._tried: set[str] = set()  # the names of their workloads
        # With the measured throughput
        self._best: tuple[float, Placement] | None = None

    @property
    def latest(self) -> MeasuredCut | None:
        """The cut of the proof, else of the last round that gave anything; None before that."""
        if self.proof is not None and self.proof.windows:
            return self.proof
        if self.measured:
            return self.measured[-1]
        return None

    @property
    def resumed(self) -> int:
        """How many of the rounds were left by an interrupted command."""
        return sum(cut.windows_resumed for cut in self.measured)

    def find_and_prove(self) -> MeasuredCut:
        """Tries cuts until none promises more than was measured, and proves the best.

        If that runs out of memory, it goes on with others.
        """
        while True:
            cut = self._cut(self._best_of_rounds(), "proof")
            self.proof = cut
            if self._prove(cut):
                return cut
            self.proof = None
            self._best = None

    def _best_of_rounds(self) -> Placement:
        """Tries cuts, and returns the best of them for the proof."""
        while (
            self._best is None or len(self.records) - self._failed < self.request.rounds
        ):
            placed = self.known.best()
            cut = self._cut(placed, "round")
            if self._best is not None:
                least = 1 + max(_WORTH_A_ROUND, placed.off or 0.0)
                if (
                    cut.workload.name in self._tried
                    or placed.throughput <= least * self._best[0]
                ):
                    break
            self._try(cut)
        return self.known.corrected(self._best[1])

    def _cut(self, placed: Placement, what: str) -> MeasuredCut:
        """A cut that is not measured yet; its windows are kept as those of `what`."""
        workload = workload_of(placed, self.request.devices)
        return MeasuredCut(
            placed,
            workload,
            Measurer(self.worker_group, self.journal, self.watch, what),
        )

    def _try(self, cut: MeasuredCut) -> None:
        """Measures a cut for a moment, unless an interrupted command has done so."""
        self._tried.add(cut.workload.name)
        self.watch(PhaseBegun("rounds"))
        text = cut_text(cut.placed, self.request.devices)
        self.watch(Doing(f"round {len(self.records) + 1}: {text}"))
        try:
            cut.measurer.take(
                (cut.workload,), StoppingRule.at_most(self.request.round_s)
            )
        except OutOfMemory as error:
            self._ran_out(cut.placed, error.replica)
            return
        self.measured.append(cut)
        self._note(cut.placed, "measured", step_time_s=usual_s(cut.windows))
        times_s = step_times_s(cut.windows)
        rate = throughput_of(cut.placed.problem.global_batch, times_s).median
        if self._best is None or rate > self._best[0]:
            self._best = rate, cut.placed
        self.known.learn(cut.placed, timelines(cut.windows), times_s)

    def _ran_out(self, placed: Placement, device: int | None) -> None:
        """Puts less on the device from now on.

        Raises PartialResult once that has been tried often enough.
        """
        self._note(placed, "oom", ran_out=device)
        self.known.ran_out(placed, device)
        if self._failed > _MOST_FAILED * len(self.request.devices):
            self.journal.helps = False
            raise PartialResult(
                f"{self._failed} ways to cut the model ran out of memory, though they "
                "were planned to fit",
                remedy=self.known.what_fits(placed.problem.micro_batch),
            )

    @property
    def _failed(self) -> int:
        """The rounds that ran out of memory."""
        return sum(record.step_time_s is None for record in self.records)

    def _note(
        self,
        placed: Placement,
        outcome: Literal["measured", "oom"],
        *,
        step_time_s: float | None = None,
        ran_out: int | None = None,
    ) -> None:
        record = LayersRound(
            number=len(self.records) + 1,
            segments=placed.segments,
            predicted_s=placed.step_time_s,
            predicted_ci95=placed.ci95,
            outcome=outcome,
            step_time_s=step_time_s,
            ran_out=ran_out,
        )
        self.records.append(record)
        self.watch(CutDone(record, self.request.devices, placed.problem.global_batch))

    def _prove(self, cut: MeasuredCut) -> bool:
        """Measures a cut in windows; False if it ran out of memory."""
        self.watch(PhaseBegun("proof"))
        self.watch(Doing(f"proving {cut_text(cut.placed, self.request.devices)}"))
        try:
            measure_interleaved(cut.measurer, [(cut.workload,)], self.request.measuring)
        except OutOfMemory as error:
            self._ran_out(cut.placed, error.replica)
            return False
        return True
