"""Measures the rounds of a cut model, and proves the best cut."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpubalance.errors import GpubalanceError, Interrupted, OutOfMemory, PartialResult
from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.events import CutDone, Doing, PhaseBegun, PipeWindowDone, Watch
from gpubalance.jobs.layers.alone import Alone
from gpubalance.jobs.layers.cuts import cut_text, kept_cut
from gpubalance.jobs.layers.kept import KeptCut, KeptLayers
from gpubalance.jobs.layers.known import Known, Planned
from gpubalance.jobs.layers.result import layers_result
from gpubalance.jobs.layers.series import PipeSeries
from gpubalance.jobs.measure.joint import party_for
from gpubalance.jobs.measure.length import Length
from gpubalance.jobs.measure.warnings import PRECISE_ENOUGH, resumed, rounds_taken_over
from gpubalance.results.common import Model, Warning_
from gpubalance.results.layers import Layers, LayersBaselines, LayersRound, SplitBaseline
from gpubalance.settings.requests import LayersRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.party import Party

# A cut that promises less than this part more is not worth a round, nor one whose promise may be kept by the best.
_WORTH_A_ROUND = 0.01
_MOST_FAILED = 2  # rounds that run out of memory, for each device


class Cutting:
    """The rounds of a cut model and its proof, with what has been found so far."""

    def __init__(
        self,
        request: LayersRequest,
        known: Known,
        uncut: Alone,
        driver: str | None,
        party: Party,
        kept: KeptLayers,
        watch: Watch,
        limit: TimeLimit,
    ) -> None:
        """`party` has all devices; its owner ends it. `uncut` is what the whole model gives."""
        self._request = request
        self._known = known
        self._uncut = uncut
        self._driver = driver
        self._party = party
        self._kept = kept
        self._watch = watch
        self._limit = limit
        self._rounds: list[LayersRound] = []
        self._tried: list[KeptCut] = []
        self._best: tuple[float, Planned] | None = None  # the measured throughput
        self._series: PipeSeries | None = None
        self._noted: list[Warning_] = []
        self._complete = False

    def run(self) -> Layers:
        """Tries cuts until none promises more than was measured, and proves the best. An error has what was found."""
        try:
            while not self._prove(self._found()):
                pass
            self._measure_split()
            self._complete = True
        except KeyboardInterrupt as interrupt:
            raise Interrupted.by(interrupt, partial=self._result()) from None
        except GpubalanceError as error:
            error.partial = error.partial or self._result()
            raise
        result = self._result()
        assert result is not None  # noqa: S101  (it was proven)
        return result

    def _found(self) -> Planned:
        """Tries cuts, and returns the best of them for the proof."""
        while self._best is None or self._measured_rounds < self._request.rounds:
            planned = self._known.best()
            worth = max(_WORTH_A_ROUND, planned.off or 0.0)
            if self._best is not None and (
                kept_cut(planned) in self._tried or planned.throughput <= (1 + worth) * self._best[0]
            ):
                break
            self._try(planned)
        return self._known.corrected(self._best[1])

    @property
    def _measured_rounds(self) -> int:
        return sum(one.step_time_s is not None for one in self._rounds)

    def _try(self, planned: Planned) -> None:
        """Measures a cut for a moment, unless an interrupted command has done so."""
        wanted = kept_cut(planned)
        self._tried.append(wanted)
        left = self._kept.cut_like(wanted)
        series = PipeSeries(planned, self._request.devices, self._request.cuts)
        if left is None:
            self._watch(PhaseBegun("rounds"))
            self._watch(Doing(f"round {len(self._rounds) + 1}: {cut_text(planned, self._request.devices)}"))
            left = self._measured(series, wanted)
            self._kept.cut(left)
        elif left.window is not None:
            series.add(left.window)
        if left.window is None:
            self._note(planned, None, left.ran_out)
            self._ran_out(planned, left.ran_out)
            return
        self._series = series
        self._note(planned, series.step_time_s, None)
        rate = series.timings.throughput.median
        if self._best is None or rate > self._best[0]:
            self._best = rate, planned
        self._known.learn(planned, series.timelines, series.timings.step_times_s)

    def _measured(self, series: PipeSeries, wanted: KeptCut) -> KeptCut:
        try:
            self._warm_up(series)
            window = self._party.ask(lambda worker: series.window(worker, Length.at_most(self._request.round_s)))
        except OutOfMemory as error:
            return wanted.model_copy(update={"ran_out": error.replica})
        return wanted.model_copy(update={"window": window})

    def _warm_up(self, series: PipeSeries) -> None:
        self._party.ask(series.warm_up)
        self._kept.learn(self._party.facts)

    def _ran_out(self, planned: Planned, device: int | None) -> None:
        """Lowers what is put on the device. Raises PartialResult once that has been tried often enough."""
        self._known.ran_out(planned, device)
        failed = sum(one.step_time_s is None for one in self._rounds)
        if failed > _MOST_FAILED * len(self._request.devices):
            self._kept.cannot_help()
            raise PartialResult(
                f"{failed} cuts ran out of memory, though they were planned to fit",
                remedy=self._known.what_fits(planned.problem.micro_batch),
            )

    def _note(self, planned: Planned, step_time_s: float | None, ran_out: int | None) -> None:
        record = LayersRound(
            number=len(self._rounds) + 1,
            segments=kept_cut(planned).segments,
            predicted_s=planned.step_time_s,
            predicted_ci95=planned.ci95,
            outcome="oom" if step_time_s is None else "measured",
            step_time_s=step_time_s,
            ran_out=ran_out,
        )
        self._rounds.append(record)
        self._watch(CutDone(record, self._request.devices, planned.problem.micro_batch * planned.problem.micro_batches))

    def _prove(self, planned: Planned) -> bool:
        """Measures a cut in windows, after those of an interrupted command; False if it ran out of memory."""
        series, cut = PipeSeries(planned, self._request.devices, self._request.cuts), kept_cut(planned)
        self._watch(PhaseBegun("proof"))
        self._watch(Doing(f"proving {cut_text(planned, self._request.devices)}"))
        left = self._kept.windows_of(cut)
        if left:
            self._noted = [resumed(len(left))]
        for window in left:
            series.add(window)
            self._tell(series)
        ran_out = self._kept.cut_like(cut)  # it passed its round: this record is of its proof
        if ran_out is None:
            try:
                self._measure(series)
                return True
            except OutOfMemory as error:
                ran_out = cut.model_copy(update={"ran_out": error.replica})
                self._kept.cut(ran_out)
        self._note(planned, None, ran_out.ran_out)
        self._ran_out(planned, ran_out.ran_out)
        self._best = None
        return False

    def _measure(self, series: PipeSeries) -> None:
        """Measures the windows that the series lacks."""
        measuring, is_warm = self._request.measuring, False
        while series.windows < measuring.windows or self._once_more(series):
            if not is_warm:
                self._warm_up(series)
                is_warm = True
            window = self._party.ask(partial(series.window, length=Length.of_window(measuring)))
            self._kept.window(kept_cut(series.planned), window)
            self._tell(series)

    def _tell(self, series: PipeSeries) -> None:
        """Notes a measured window, from which on there is a result, and emits its event."""
        self._series = series
        number, rate = series.windows, series.timings.throughput.median
        of = max(number, self._request.measuring.windows)
        self._watch(PipeWindowDone(number, of, rate, series.step_time_s))

    def _once_more(self, series: PipeSeries) -> bool:
        imprecise = series.timings.precision > PRECISE_ENOUGH
        return imprecise and series.windows < self._request.measuring.max_windows

    def _measure_split(self) -> None:
        """Measures the batch split for a moment, if each device holds the model."""
        split, facts = self._uncut.split, self._kept.facts
        if split is None or facts is None:
            return
        self._party.end()
        try:
            measured = self._kept.split_like(split) or self._measured_split(split, facts.model)
        except OutOfMemory as error:
            self._uncut = replace(self._uncut, split=None, split_why_not=error.message)
        else:
            self._uncut = replace(self._uncut, split=measured)

    def _measured_split(self, split: SplitBaseline, model: Model) -> SplitBaseline:
        uncut = self._request.uncut
        self._watch(Doing(f"measuring the batch split {split.split} of the uncut model"))
        with party_for(uncut, self._watch, self._limit) as party:
            together = Together(uncut, model, party, self._watch)
            rate = together.measure(split.split, self._request.round_s).throughput.median
        measured = split.model_copy(update={"throughput": rate, "measured": True})
        self._kept.split(measured)
        return measured

    def _result(self) -> Layers | None:
        """The result of what was measured so far; None before the first round."""
        if self._series is None or self._kept.facts is None:
            return None
        taken = self._kept.taken_over
        return layers_result(
            self._request,
            self._known.graph,
            self._series,
            self._kept.facts,
            self._driver,
            LayersBaselines(
                solo_best=self._uncut.best,
                solo_best_why_not=self._uncut.solo_why_not,
                split=self._uncut.split,
                split_why_not=self._uncut.split_why_not,
            ),
            self._rounds,
            complete=self._complete,
            noted=[*([rounds_taken_over(taken)] if taken else []), *self._noted],
        )
