"""What is known of the blocks on each device, corrected by each cut that was run, and the best cut
by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from gpubalance.errors import NothingFits
from gpubalance.jobs.layers.blocks import DeviceCosts, MeasuredBlocks
from gpubalance.numbers.stats import half_width, median
from gpubalance.numbers.units import format_bytes
from gpubalance.planning.pipeline.place import NoPlacementError, Placement, place
from gpubalance.planning.pipeline.problem import Cut, CutProblem, Graph
from gpubalance.planning.pipeline.schedule import inputs_of, simulate
from gpubalance.planning.pipeline.timeline import Timeline
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.requests import LayersRequest
from gpubalance.settings.shares import run_text

# The smallest micro-batch within this part of the best throughput is taken.
_NEARLY = 0.05
# The bounds of micro-batches: samples, and times the largest measured one.
_LARGEST, _BEYOND = 4096, 4
# The link between GPUs until it is measured: PCIe 3.0 with 16 lanes, less its overhead.
_GPU_LINK = JointProfile(link_latency_s=50e-6, link_bytes_per_s=10e9)
# The part of what a device was planned to take when it ran out of memory that it is given next.
_LESS = 0.95


class BlockCosts:
    """What blocks take alone, and the factors by which they differ in the pipeline."""

    def __init__(
        self, request: LayersRequest, graph: Graph, measured: Sequence[MeasuredBlocks]
    ) -> None:
        self.graph = graph
        self._request = request
        self._devices = [DeviceCosts(one.points, len(graph.blocks)) for one in measured]
        joint = request.joint if request.devices[0].simulated else _GPU_LINK
        extra = request.margin_bytes + joint.extra_memory
        limits = (math.inf if one.limit_bytes is None else one.limit_bytes for one in measured)
        self._limits = [limit - extra for limit in limits]
        self._first_limits = tuple(self._limits)
        self._latency_s, self._bytes_per_s = joint.link_latency_s, joint.link_bytes_per_s
        self._micro_batch = request.micro_batch
        self._off: float | None = None

    def best(self) -> Placement:
        """The best cut; the first call also decides on the micro-batch if that is free. Raises
        NothingFits.
        """
        most, found = (
            min(_LARGEST, _BEYOND * max(one.largest for one in self._devices)),
            list[Placement](),
        )
        sizes = [1 << doubled for doubled in range(most.bit_length())]
        for size in [self._micro_batch] if self._micro_batch else sizes:
            try:
                found.append(self._at(size))
            except NothingFits:
                if not found:
                    raise
                break
        least = (1 - _NEARLY) * max(one.throughput for one in found)
        best = next(one for one in found if one.throughput >= least)
        self._micro_batch = best.problem.micro_batch
        return best

    def _at(self, micro_batch: int) -> Placement:
        try:
            return replace(place(self._problem(micro_batch, self._limits)), off=self._off)
        except NoPlacementError as error:
            raise self._nothing_fits(micro_batch, error.block) from None

    def _problem(self, micro_batch: int, limits: Sequence[float]) -> CutProblem:
        loads = [
            one.load(micro_batch, limit) for one, limit in zip(self._devices, limits, strict=True)
        ]
        link = self._latency_s, self._bytes_per_s
        return CutProblem(self.graph, tuple(loads), micro_batch, self._request.in_a_step, *link)

    def learn(
        self, placed: Placement, stamped: Sequence[Timeline], step_times_s: Sequence[float]
    ) -> None:
        """Corrects the times of blocks and the latency of transfers by the stamped steps, to add up
        to the others.

        The next window may be off by √2 times what this one's median may be, by as much as stamped
        steps are, and by as much as the promise for this cut was if a cut had been run before.
        """
        step_s = median(step_times_s)
        steps = [one.lasting(step_s) for one in stamped]
        stamps = median([one.step_time_s for one in stamped]) / step_s
        missed = 1.0 if placed.off is None else step_s / placed.step_time_s
        window = half_width(step_times_s)
        known = math.inf if window is None else math.sqrt(2) * window
        self._off = max(known, *(max(part, 1 / part) - 1 for part in (stamps, missed)))
        for device, costs in enumerate(self._devices):
            costs.learn(placed, device, steps)
        over_s = [one for step in steps for one in _longer_s(placed, step)]
        if over_s:
            self._latency_s = max(0.0, placed.problem.latency_s + median(over_s))

    def corrected(self, placed: Placement) -> Placement:
        """The same placement and orders with the step that is expected by now."""
        problem = self._problem(placed.problem.micro_batch, self._limits)
        timeline = simulate(Cut(problem, placed.segments), placed.orders)
        return replace(placed, problem=problem, timeline=timeline, off=self._off)

    def ran_out(self, placed: Placement, device: int | None) -> None:
        """Lowers the limit of a device, or of all if it is unknown which. A free micro-batch is
        chosen again.
        """
        for one in [device] if device is not None else range(len(self._limits)):
            if placed.peak_bytes[one]:
                self._limits[one] = min(self._limits[one], _LESS * placed.peak_bytes[one])
        self._micro_batch = self._request.micro_batch

    def what_fits(self, micro_batch: int) -> str:
        """What to type instead, with the margin that turned out to be missing: the largest
        micro-batch that fits.

        `--micro-batch 16 fits: GPU:0 blocks 0–8 (0.9 of 1 GiB), …`.
        """
        pairs = [*zip(self._first_limits, self._limits, strict=True)]
        lacks = max((int(first - now) for first, now in pairs if first < math.inf), default=0)
        limits = [first - lacks if first < math.inf else now for first, now in pairs]
        margin = f"--margin {-(-(self._request.margin_bytes + lacks) >> 20)}MiB " if lacks else ""
        for times in range(1, micro_batch.bit_length()):
            with suppress(NoPlacementError):
                placed = place(self._problem(micro_batch >> times, limits))
                stages = ", ".join(_stage_texts(placed, self._request.devices))
                return f"{margin}--micro-batch {micro_batch >> times} fits: {stages}"
        return "no smaller micro-batch fits: take more devices, or a smaller model"

    def _nothing_fits(self, micro_batch: int, block: int | None) -> NothingFits:
        held = zip(self._request.devices, self._limits, strict=True)
        devices = ", ".join(f"{device.label} {_limit_text(limit)}" for device, limit in held)
        message = (
            f"no cut of {self._request.settings.model} into stages fits: micro-batches of "
            f"{micro_batch} on {devices}"
        )
        if block is not None:
            name = self.graph.blocks[block].name
            message = f"the block that begins with {name} is larger than every device ({devices})"
        return NothingFits(message, remedy=self.what_fits(micro_batch))


def _longer_s(placed: Placement, step: Timeline) -> Iterator[float]:
    """How much longer than planned each transfer took to a device that had nothing else to do.

    A device that was busy may not have looked for it at once.
    """
    sizes = {frozenset(pair): size for *pair, size in placed.links}
    ends_s = {one.task: one.end_s for one in step.tasks}
    free_s = dict.fromkeys((one.device for one in placed.segments), 0.0)
    for one in step.tasks:
        for other in inputs_of(one.task, placed.links):
            is_sent = placed.segments[other.segment].device != one.device
            if is_sent and free_s[one.device] <= ends_s[other] == one.sent_s:
                size = sizes[frozenset((other.segment, one.segment))]
                yield one.ready_s - one.sent_s - placed.problem.transfer_s(size)
        free_s[one.device] = one.end_s


def _stage_texts(placed: Placement, devices: Sequence[Device]) -> Iterator[str]:
    for number, device in enumerate(devices):
        own = [run_text(one.first, one.last) for one in placed.segments if one.device == number]
        if own:
            needs, limit = placed.peak_bytes[number], placed.problem.loads[number].memory_bytes
            yield (
                f"{device.label} blocks {' '.join(own)} ({format_bytes(int(needs))} of "
                f"{_limit_text(limit)})"
            )


def _limit_text(limit_bytes: float) -> str:
    """A device's memory as text."""
    return format_bytes(int(limit_bytes) if limit_bytes < math.inf else None)
