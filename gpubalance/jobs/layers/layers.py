"""`layers`: cuts a model over several devices, runs it as a pipeline, corrects the cut by measurements, proves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from gpubalance.errors import NothingFits, OutOfMemory, PartialResult, UsageError
from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.endings import giving, lost_gpus_told
from gpubalance.jobs.events import CutDone, Doing, PhaseBegun, PipeWindowDone, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.once import Once
from gpubalance.jobs.layers.blocks import check_cuts, time_blocks
from gpubalance.jobs.layers.known import Known
from gpubalance.jobs.layers.result import layers_result
from gpubalance.jobs.layers.series import CutSeries, TriedCut, cut_key, cut_text
from gpubalance.jobs.layers.uncut import Uncut, refuse_what_is_faster_uncut, uncut
from gpubalance.jobs.measure.joint import party_for
from gpubalance.jobs.measure.length import Length
from gpubalance.jobs.measure.turns import in_turns
from gpubalance.planning.pipeline.place import Placement
from gpubalance.results.common import Model
from gpubalance.results.layers import Layers, LayersRound, SplitBaseline
from gpubalance.settings.requests import LayersRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Ready
from gpubalance.workers.party import Party

# A cut that promises less than this part more is not worth a round, nor one whose promise may be kept by the best.
_WORTH_A_ROUND = 0.01
_MOST_FAILED = 2  # rounds that run out of memory, for each device


def layers(request: LayersRequest, driver: str | None, watch: Watch, journal: Journal | None = None) -> Layers:
    """The best cut of the request's model, found and proven by running it; `driver` is recorded.

    Blocks, rounds and windows go into the `journal`; those that are already in it are not measured again. Raises
    Refused for a model that can't be cut, UsageError for one that is better off uncut, NothingFits if no cut fits, and
    what a probe and a worker do; with what was measured before as `partial`.
    """
    limit, once = TimeLimit(request.measuring.time_limit_s), Once(journal, watch)
    with lost_gpus_told(request.devices), ExitStack() as opened:
        each = [party_for(request, watch, limit, device, purpose="layers") for device in request.devices]
        alone = [*map(opened.enter_context, each)]
        together = opened.enter_context(party_for(request, watch, limit))
        check_cuts(request, once, alone[0])
        whole = uncut(request, driver, limit, watch, journal)
        with _no_help_of(once):
            refuse_what_is_faster_uncut(request, whole)
        watch(PhaseBegun("blocks"))
        known = Known(request, time_blocks(request, once, alone, together, watch))
        with _no_help_of(once):
            refuse_what_is_faster_uncut(request, whole, known.best().throughput)
            return Cutting(request, known, whole, driver, together, once, watch, limit).run()


@contextmanager
def _no_help_of(once: Once) -> Iterator[None]:
    """Makes what is refused in the block not offer --resume: with the journal it would be refused again."""
    try:
        yield
    except (UsageError, NothingFits):
        once.cannot_help()
        raise


@dataclass
class Cutting:
    """The rounds of a cut model and its proof, with what has been found so far.

    `party` has all devices; its owner ends it. `whole` is what the uncut model gives.
    """

    request: LayersRequest
    known: Known
    whole: Uncut
    driver: str | None
    party: Party
    once: Once
    watch: Watch
    limit: TimeLimit
    rounds: list[LayersRound] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    best: tuple[float, Placement] | None = None  # the measured throughput
    series: CutSeries | None = None
    again: Counter[str] = field(default_factory=Counter)  # rounds and windows that an interrupted command left
    complete: bool = False

    def __post_init__(self) -> None:
        # What the worker reported of the model and the software, which a result needs beside measurements.
        self.facts = self.once.had("facts", Ready)

    def run(self) -> Layers:
        """Tries cuts until none promises more than was measured, and proves the best. An error has what was found."""
        with giving(self._result):
            while not self._prove(self._found()):
                pass
            self._measure_split()
            self.complete = True
        result = self._result()
        assert result is not None  # noqa: S101  (it was proven)
        return result

    def _found(self) -> Placement:
        """Tries cuts, and returns the best of them for the proof."""
        while self.best is None or sum(one.step_time_s is not None for one in self.rounds) < self.request.rounds:
            placed = self.known.best()
            least = 1 + max(_WORTH_A_ROUND, placed.off or 0.0)
            if self.best is not None and (cut_key(placed) in self.tried or placed.throughput <= least * self.best[0]):
                break
            self._try(placed)
        return self.known.corrected(self.best[1])

    def _try(self, placed: Placement) -> None:
        """Measures a cut for a moment, unless an interrupted command has done so."""
        series = self._series(placed)
        self.tried.append(cut_key(placed))
        self.watch(PhaseBegun("rounds"))
        self.watch(Doing(f"round {len(self.rounds) + 1}: {cut_text(placed, self.request.devices)}"))
        try:
            self._look(series, "rounds", f"round {cut_key(placed)}", Length.at_most(self.request.round_s))
        except OutOfMemory as error:
            self._ran_out(placed, error.replica)
            return
        self._note(placed, series.usual_s)
        rate = series.throughput.median
        if self.best is None or rate > self.best[0]:
            self.best = rate, placed
        self.known.learn(placed, series.timelines, series.step_times_s)

    def _series(self, placed: Placement) -> CutSeries:
        return CutSeries.of_cut(placed, self.request.devices, self.request.cuts)

    def _look(self, series: CutSeries, what: str, key: str, length: Length) -> None:
        """Adds a window to the series, measured or left by an interrupted command. Raises OutOfMemory."""
        before = self.once.again[TriedCut]
        tried = self.once(key, TriedCut, lambda: self._measured(series, length))
        if tried.window is None:
            raise OutOfMemory("a cut ran out of memory", replica=tried.ran_out)
        series.add(tried.window)
        self.again[what] += self.once.again[TriedCut] - before
        self.series = series

    def _measured(self, series: CutSeries, length: Length) -> TriedCut:
        try:
            self.party.ask(series.warm_up)
            self.facts = self.once("facts", Ready, lambda: self.party.facts)
            return TriedCut(window=self.party.ask(lambda worker: series.window(worker, length)))
        except OutOfMemory as error:
            return TriedCut(ran_out=error.replica)

    def _ran_out(self, placed: Placement, device: int | None) -> None:
        """Puts less on the device from now on. Raises PartialResult once that has been tried often enough."""
        self._note(placed, None, device)
        self.known.ran_out(placed, device)
        failed = sum(one.step_time_s is None for one in self.rounds)
        if failed > _MOST_FAILED * len(self.request.devices):
            self.once.cannot_help()
            raise PartialResult(
                f"{failed} cuts ran out of memory, though they were planned to fit",
                remedy=self.known.what_fits(placed.problem.micro_batch),
            )

    def _note(self, placed: Placement, step_time_s: float | None, ran_out: int | None = None) -> None:
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
        """Measures a cut in windows, after those of an interrupted command; False if it ran out of memory."""
        series = self._series(placed)
        self.watch(PhaseBegun("proof"))
        self.watch(Doing(f"proving {cut_text(placed, self.request.devices)}"))
        self.again["windows"] = 0
        try:
            in_turns(lambda: [series], self._turn, self.request.measuring, list, self.watch)
            return True
        except OutOfMemory as error:
            self._ran_out(placed, error.replica)
            self.best = None
            return False

    def _turn(self, series: CutSeries, number: int, of: int) -> None:
        """Measures a window of the proof, from which on there is a result, and emits its event."""
        key = f"window {number} {cut_key(series.placed)}"
        self._look(series, "windows", key, Length.of_window(self.request.measuring))
        self.watch(PipeWindowDone(number, of, series.throughput.median, series.usual_s))

    def _measure_split(self) -> None:
        """Measures the batch split for a moment, if each device holds the model."""
        split, facts = self.whole.split, self.facts
        if split is None or facts is None:
            return
        self.party.end()
        try:
            key = f"batch split {split.split}"
            measured = self.once(key, SplitBaseline, lambda: self._measured_split(split, facts.model))
            self.whole = replace(self.whole, split=measured)
        except OutOfMemory as error:
            self.whole = replace(self.whole, split=None, split_why_not=error.message)

    def _measured_split(self, split: SplitBaseline, model: Model) -> SplitBaseline:
        request = self.request.uncut
        self.watch(Doing(f"measuring the batch split {split.split} of the uncut model"))
        with party_for(request, self.watch, self.limit) as party:
            together = Together(request, model, party, self.watch)
            rate = together.measure(split.split, self.request.round_s).throughput.median
        return split.model_copy(update={"throughput": rate, "measured": True})

    def _result(self) -> Layers | None:
        """The result of what was measured so far; None before the first round."""
        if self.series is None or self.facts is None:
            return None
        return layers_result(self, self.series, self.facts)
