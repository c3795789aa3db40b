"""Measures the rounds of a cut model, and proves the best cut."""

from __future__ import annotations

from dataclasses import replace

from gpubalance.errors import OutOfMemory, PartialResult
from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.events import CutDone, Doing, PhaseBegun, PipeWindowDone, Watch
from gpubalance.jobs.keep.once import Once
from gpubalance.jobs.layers.alone import Alone
from gpubalance.jobs.layers.cuts import cut_key, cut_text, segments_of
from gpubalance.jobs.layers.kept import PipeWindow, TriedCut
from gpubalance.jobs.layers.known import Known, Planned
from gpubalance.jobs.layers.result import layers_result
from gpubalance.jobs.layers.series import PipeSeries
from gpubalance.jobs.measure.joint import party_for
from gpubalance.jobs.measure.length import Length
from gpubalance.jobs.measure.turns import in_turns
from gpubalance.jobs.measure.warnings import resumed
from gpubalance.jobs.partial import giving
from gpubalance.results.common import Model
from gpubalance.results.layers import Layers, LayersBaselines, LayersRound, SplitBaseline
from gpubalance.settings.requests import LayersRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Ready
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
        once: Once,
        watch: Watch,
        limit: TimeLimit,
    ) -> None:
        """`party` has all devices; its owner ends it. `uncut` is what the whole model gives."""
        self._request = request
        self._known = known
        self._uncut = uncut
        self._driver = driver
        self._party = party
        self._once = once
        # What the worker reported of the model and the software, which a result needs beside measurements.
        self._facts = once.had("facts", Ready)
        self._watch = watch
        self._limit = limit
        self._rounds: list[LayersRound] = []
        self._tried: list[str] = []
        self._best: tuple[float, Planned] | None = None  # the measured throughput
        self._series: PipeSeries | None = None
        self._again = 0  # windows of the proof that an interrupted command left
        self._complete = False

    def run(self) -> Layers:
        """Tries cuts until none promises more than was measured, and proves the best. An error has what was found."""
        with giving(self._result):
            while not self._prove(self._found()):
                pass
            self._measure_split()
            self._complete = True
        result = self._result()
        assert result is not None  # noqa: S101  (it was proven)
        return result

    def _found(self) -> Planned:
        """Tries cuts, and returns the best of them for the proof."""
        while self._best is None or self._measured_rounds < self._request.rounds:
            planned = self._known.best()
            worth = max(_WORTH_A_ROUND, planned.off or 0.0)
            if self._best is not None and (
                cut_key(planned) in self._tried or planned.throughput <= (1 + worth) * self._best[0]
            ):
                break
            self._try(planned)
        return self._known.corrected(self._best[1])

    @property
    def _measured_rounds(self) -> int:
        return sum(one.step_time_s is not None for one in self._rounds)

    def _try(self, planned: Planned) -> None:
        """Measures a cut for a moment, unless an interrupted command has done so."""
        self._tried.append(cut_key(planned))
        series = PipeSeries(planned, self._request.devices, self._request.cuts)
        tried = self._once(f"round {cut_key(planned)}", TriedCut, lambda: self._measured(series))
        if tried.window is None:
            self._note(planned, None, tried.ran_out)
            self._ran_out(planned, tried.ran_out)
            return
        if not series.windows:
            series.add(tried.window)
        self._series = series
        self._note(planned, series.step_time_s, None)
        rate = series.timings.throughput.median
        if self._best is None or rate > self._best[0]:
            self._best = rate, planned
        self._known.learn(planned, series.timelines, series.timings.step_times_s)

    def _measured(self, series: PipeSeries) -> TriedCut:
        self._watch(PhaseBegun("rounds"))
        self._watch(Doing(f"round {len(self._rounds) + 1}: {cut_text(series.planned, self._request.devices)}"))
        try:
            return TriedCut(window=self._window(series, Length.at_most(self._request.round_s)))
        except OutOfMemory as error:
            return TriedCut(ran_out=error.replica)

    def _window(self, series: PipeSeries, length: Length) -> PipeWindow:
        self._party.ask(series.warm_up)
        self._facts = self._once("facts", Ready, lambda: self._party.facts)
        return self._party.ask(lambda worker: series.window(worker, length))

    def _ran_out(self, planned: Planned, device: int | None) -> None:
        """Lowers what is put on the device. Raises PartialResult once that has been tried often enough."""
        self._known.ran_out(planned, device)
        failed = sum(one.step_time_s is None for one in self._rounds)
        if failed > _MOST_FAILED * len(self._request.devices):
            self._once.cannot_help()
            raise PartialResult(
                f"{failed} cuts ran out of memory, though they were planned to fit",
                remedy=self._known.what_fits(planned.problem.micro_batch),
            )

    def _note(self, planned: Planned, step_time_s: float | None, ran_out: int | None) -> None:
        record = LayersRound(
            number=len(self._rounds) + 1,
            segments=segments_of(planned),
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
        series, key = PipeSeries(planned, self._request.devices, self._request.cuts), cut_key(planned)
        self._watch(PhaseBegun("proof"))
        self._watch(Doing(f"proving {cut_text(planned, self._request.devices)}"))
        self._again = 0
        failed = self._once.had(f"out of memory in the proof {key}", TriedCut)
        if failed is None:
            try:
                in_turns(lambda: [series], self._turn, self._request.measuring, lambda: [], self._watch)
                return True
            except OutOfMemory as error:
                failed = TriedCut(ran_out=error.replica)
                self._once.keep(f"out of memory in the proof {key}", failed)
        self._note(planned, None, failed.ran_out)
        self._ran_out(planned, failed.ran_out)
        self._best = None
        return False

    def _turn(self, series: PipeSeries, number: int, of: int) -> None:
        """Measures a window of the proof, from which on there is a result, and emits its event."""
        key, length = f"window {number} {cut_key(series.planned)}", Length.of_window(self._request.measuring)
        window = self._once(key, PipeWindow, lambda: self._window(series, length))
        if series.windows < number:
            series.add(window)
            self._again += 1
        self._series = series
        self._watch(PipeWindowDone(number, of, series.timings.throughput.median, series.step_time_s))

    def _measure_split(self) -> None:
        """Measures the batch split for a moment, if each device holds the model."""
        split, facts = self._uncut.split, self._facts
        if split is None or facts is None:
            return
        self._party.end()
        try:
            key = f"batch split {split.split}"
            measured = self._once(key, SplitBaseline, lambda: self._measured_split(split, facts.model))
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
        return split.model_copy(update={"throughput": rate, "measured": True})

    def _result(self) -> Layers | None:
        """The result of what was measured so far; None before the first round."""
        if self._series is None or self._facts is None:
            return None
        return layers_result(
            self._request,
            self._known.graph,
            self._series,
            self._facts,
            self._driver,
            LayersBaselines(
                solo_best=self._uncut.best,
                solo_best_why_not=self._uncut.solo_why_not,
                split=self._uncut.split,
                split_why_not=self._uncut.split_why_not,
            ),
            self._rounds,
            complete=self._complete,
            noted=[*resumed(self._once.again[TriedCut], "rounds"), *resumed(self._again)],
        )
