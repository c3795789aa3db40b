"""The rounds of a cut model: a cut is run for a moment and measured, and the best one is proven."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gpubalance.errors import OutOfMemory, PartialResult
from gpubalance.jobs.events import Doing, PhaseBegun, RecordDone, Watch
from gpubalance.jobs.journal import Journal
from gpubalance.jobs.layers.costs import BlockCosts
from gpubalance.jobs.measure.figures import (
    Windows,
    began_s,
    median_step_s,
    peaks,
    stamped_in,
    step_times_s,
    throughput_of,
)
from gpubalance.jobs.measure.joint import InterleavedWindows
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.window import Workload
from gpubalance.numbers.stats import median
from gpubalance.planning.pipeline.place import Placement
from gpubalance.planning.pipeline.problem import Timeline
from gpubalance.results.layers import LayersRound, MeasuredBlock, Stage, StepTimeline
from gpubalance.settings.batch_split import BatchSplit, count_text, run_text
from gpubalance.settings.device import Device
from gpubalance.settings.requests import LayersRequest
from gpubalance.workers.messages import Pipe
from gpubalance.workers.worker_group import WorkerGroup

_PARTS = ("forward", "backward", "transfer", "update")


@dataclass(frozen=True)
class MeasuredCut:
    """A cut and the measurer that takes, or has taken, its windows."""

    placed: Placement
    workload: Workload
    measurer: Measurer

    @property
    def windows(self) -> Windows:
        """Those that were taken so far."""
        return self.measurer.windows[self.workload]

    @property
    def windows_resumed(self) -> int:
        """How many of them an interrupted command left."""
        return self.measurer.resumed[(self.workload,)]


def workload_of(placed: Placement, devices: tuple[Device, ...]) -> Workload:
    """What is measured of a cut. Its name is equal for equal cuts that run alike.

    They have equal micro-batches, and as many of them in flight.
    """
    problem = placed.problem
    name = f"{problem.micro_batch} {[*map(tuple, placed.segments)]} {placed.in_flight}"
    cut = Pipe(
        segments=placed.segments,
        order=placed.orders,
        micro_batch=problem.micro_batch,
        micro_batches=problem.micro_batches,
    )
    split = BatchSplit((problem.global_batch,), (problem.micro_batch,))
    return Workload(split, devices, name, shown=False, cut=cut)


def cut_text(placed: Placement, devices: Sequence[Device]) -> str:
    """`GPU:0 blocks 0–8, GPU:1 blocks 9–17; 16 micro-batches of 32`."""
    stages = []
    for segment in placed.segments:
        blocks = run_text(segment.first, segment.last)
        stages.append(f"{devices[segment.device].label} blocks {blocks}")
    problem = placed.problem
    return (
        f"{', '.join(stages)}; {count_text(problem.micro_batches, problem.micro_batch)}"
    )


def timelines(windows: Windows) -> list[Timeline]:
    """The stamped steps, the shortest first."""
    steps = [step.timeline for step in stamped_in(windows) if step.timeline is not None]
    return sorted(steps, key=lambda step: step.step_time_s)


def usual_timeline(windows: Windows) -> StepTimeline:
    """The stamped step with the middle time."""
    steps = timelines(windows)
    return _record(steps[(len(steps) - 1) // 2])


def stages(cut: MeasuredCut) -> Iterator[Stage]:
    """The stages, in the blocks' order.

    Each part is the median fraction of the stamped steps, times a step without stamps; the bubble
    is the rest. If steps differ much the medians may add up to more than a step: then all are
    scaled down by the same factor.
    """
    placed = cut.placed
    windows = cut.windows
    steps = [_record(step) for step in timelines(windows)]
    step_time_s = median_step_s(windows)
    peak_bytes = peaks(windows)
    telemetry = cut.measurer.sensors(cut.workload).telemetry(began_s(windows))
    for device in dict.fromkeys(segment.device for segment in placed.segments):
        fractions = _median_parts(steps, device)
        whole = sum(fractions.values())
        scale_s = step_time_s / max(1.0, whole)
        segments = [segment for segment in placed.segments if segment.device == device]
        predicted_bytes = None
        if placed.problem.loads[device].memory_bytes < math.inf:
            predicted_bytes = round(placed.peak_bytes[device])
        yield Stage(
            device=device,
            segments=tuple((segment.first, segment.last) for segment in segments),
            **{f"{name}_s": scale_s * part for name, part in fractions.items()},
            bubble_s=max(0.0, step_time_s - scale_s * whole),
            in_flight=placed.in_flight[device],
            memory_peak_bytes=peak_bytes[device],
            memory_predicted_bytes=predicted_bytes,
            telemetry=telemetry[device],
        )


def blocks(placed: Placement) -> Iterator[MeasuredBlock]:
    """What each block takes on each device by what is known now."""
    graph = placed.problem.graph
    loads = placed.problem.loads
    crossing_bytes = graph.crossing_bytes
    for number, block in enumerate(graph.blocks):
        compute_s: list[float | None] = []
        for load in loads:
            passes_s = load.forward_s[number] + load.backward_s[number]
            compute_s.append(None if math.isinf(passes_s) else passes_s)
        yield MeasuredBlock(
            name=block.name,
            calls=block.calls,
            weights_bytes=block.weights_bytes,
            crossing_bytes=crossing_bytes[number],
            compute_s=tuple(compute_s),
        )


def _record(timeline: Timeline) -> StepTimeline:
    return StepTimeline.model_validate(timeline, from_attributes=True)


def _median_parts(steps: Sequence[StepTimeline], device: int) -> dict[str, float]:
    """The median fraction of a step that each kind of the device's work takes."""
    by_step = [_parts(step, device) for step in steps]
    medians = {}
    for name in _PARTS:
        medians[name] = median([parts[name] for parts in by_step])
    return medians


def _parts(step: StepTimeline, device: int) -> dict[str, float]:
    """The fraction of a step that each kind of the device's work takes."""
    parts = dict.fromkeys(_PARTS, 0.0)
    for kind, start_s, end_s, _ in step.spans(device):
        parts[kind] += (end_s - start_s) / step.step_time_s
    return parts


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
            Measurer(self.worker_group, self.journal, self.watch, key=what),
        )

    def _try(self, cut: MeasuredCut) -> None:
        """Measures a cut for a moment, unless an interrupted command has done so."""
        self._tried.add(cut.workload.name)
        self.watch(PhaseBegun("rounds"))
        text = cut_text(cut.placed, self.request.devices)
        self.watch(Doing(f"round {len(self.records) + 1}: {text}"))
        try:
            cut.measurer.measure_kept(
                (cut.workload,), StoppingRule.at_most(self.request.round_s)
            )
        except OutOfMemory as error:
            self._ran_out(cut.placed, error.replica)
            return
        self.measured.append(cut)
        self._note(cut.placed, "measured", step_time_s=median_step_s(cut.windows))
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
        global_batch = placed.problem.global_batch
        self.watch(RecordDone(record, self.request.devices, global_batch))

    def _prove(self, cut: MeasuredCut) -> bool:
        """Measures a cut in windows; False if it ran out of memory."""
        self.watch(PhaseBegun("proof"))
        self.watch(Doing(f"proving {cut_text(cut.placed, self.request.devices)}"))
        try:
            sets = [(cut.workload,)]
            InterleavedWindows(cut.measurer, sets, self.request.measuring).measure()
        except OutOfMemory as error:
            self._ran_out(cut.placed, error.replica)
            return False
        return True
