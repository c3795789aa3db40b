"""A model's blocks: what each takes alone on each device, and in each cut; the best cut."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from gpubalance.errors import NothingFits, OutOfMemory
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.journal import Journal
from gpubalance.numbers.stats import half_width, mean, median
from gpubalance.numbers.units import format_bytes
from gpubalance.planning.model import monotone_curve
from gpubalance.planning.pipeline.place import NoPlacementError, Placement, place
from gpubalance.planning.pipeline.problem import (
    BlockLoad,
    Cut,
    CutProblem,
    Graph,
    Pass,
    Timeline,
)
from gpubalance.planning.pipeline.schedule import inputs_of, simulate
from gpubalance.results.timing import BlockTimed
from gpubalance.settings.batch_split import run_text
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.measuring import margin_on
from gpubalance.settings.record import Record
from gpubalance.settings.requests import LayersRequest
from gpubalance.workers.messages import Measured, Ready, TimeBlocks
from gpubalance.workers.worker_group import WorkerGroup

# If no micro-batch is asked for: enough sizes to see how much of a block's time is fixed, and where
# it bends.
_SIZES = (8, 32, 128)
_TIMES = 5
_SECONDS = 0.02


class MeasuredBlocks(Record):
    """All that was measured of blocks on a device alone.

    `limit_bytes` is what its allocator may take.
    """

    limit_bytes: int | None
    points: tuple[BlockTimed, ...]


def model_facts(worker_group: WorkerGroup, journal: Journal) -> Ready:
    """What a worker of one device says of the model, or said before an interruption.

    Raises Refused for a model that can't be cut, before it is probed.
    """
    return journal.get_or_make("facts", Ready, partial(_facts, worker_group))


def _facts(worker_group: WorkerGroup) -> Ready:
    """What a new worker says; it ends then, as the device is wanted for the probe."""
    worker_group.start()
    facts = worker_group.facts
    worker_group.end()
    worker_group.load()
    return facts


def time_blocks(
    request: LayersRequest,
    count: int,
    journal: Journal,
    groups: Sequence[WorkerGroup],
    after: WorkerGroup,
    watch: Watch,
) -> list[MeasuredBlocks]:
    """Each device's `count` blocks, measured or left by an interrupted command.

    `groups` have a device each; while one measures, the next loads TensorFlow, and at last
    the one `after` them. Raises what a worker does, but OutOfMemory.
    """
    measured = []
    for number, device in enumerate(request.devices):
        is_last = number + 1 == len(groups)
        next_group = after if is_last else groups[number + 1]
        make = partial(
            _timed, request, count, device, groups[number], next_group, watch
        )
        measured.append(
            journal.get_or_make(f"blocks of {device.uuid}", MeasuredBlocks, make)
        )
    return measured


def _timed(
    request: LayersRequest,
    count: int,
    device: Device,
    worker_group: WorkerGroup,
    next_group: WorkerGroup,
    watch: Watch,
) -> MeasuredBlocks:
    """One device's blocks at the useful sizes.

    One that does not fit at a size is not tried at larger ones.
    """
    worker_group.start(then=next_group)
    blocks = list(range(count))
    points: list[BlockTimed] = []
    sizes: tuple[int, ...] = _SIZES
    if request.micro_batch:
        sizes = (request.micro_batch,)
    for size in sizes:
        if not blocks:
            break
        watch(
            Doing(
                f"{device.label}: measuring {len(blocks)} blocks of layers, "
                f"micro-batches of {size}"
            )
        )
        measured = _at_size(worker_group, blocks, size)
        points += measured
        fitting = [point.block for point in measured]
        if size == sizes[0] > 1:
            too_large = sorted(set(blocks) - set(fitting))
            points += _at_size(worker_group, too_large, 1)
        blocks = fitting
    limit_bytes = worker_group.facts.memory_limit_bytes[0]
    worker_group.end()
    return MeasuredBlocks(limit_bytes=limit_bytes, points=tuple(points))


def _at_size(
    worker_group: WorkerGroup, blocks: Sequence[int], size: int
) -> list[BlockTimed]:
    """Measures the blocks that fit.

    After one that does not it goes on with the next, on a GPU in a fresh process.
    """
    points: list[BlockTimed] = []
    left = tuple(blocks)

    while left:
        before = len(points)
        asked = TimeBlocks(
            blocks=left, micro_batch=size, seconds=_SECONDS, at_least=_TIMES
        )
        try:
            with worker_group.worker() as worker:
                for reply in worker.replies(asked, BlockTimed, Measured):
                    if isinstance(reply, BlockTimed):
                        points.append(reply)
        except OutOfMemory as error:
            if error.fault is not None and not points:
                raise error.fault from None
        left = left[len(points) - before + 1 :]
    return points


# The smallest micro-batch within this part of the best throughput is taken.
_NEARLY = 0.05
# The bounds of micro-batches: samples, and times the largest measured one.
_LARGEST = 4096
_BEYOND = 4
# The link between GPUs until it is measured: PCIe 3.0 with 16 lanes, less its overhead.
_GPU_LINK = JointProfile(link_latency_s=50e-6, link_bytes_per_s=10e9)
# The part of what a device was planned to take when it ran out of memory that it is given next.
_LESS = 0.95
_DOES_NOT_FIT = [math.inf, math.inf, 0.0, 0.0, 0.0, 0.0]
_LEAST_S = 1e-9


class BlockCosts:
    """What blocks take alone, and the factors by which they differ in the pipeline."""

    def __init__(
        self, request: LayersRequest, graph: Graph, measured: Sequence[MeasuredBlocks]
    ) -> None:
        self.graph = graph
        self._request = request
        joint = request.joint if request.devices[0].simulated else _GPU_LINK
        self._latency_s = joint.link_latency_s
        self._bytes_per_s = joint.link_bytes_per_s
        self._kept_free = [
            margin_on(device, request.margin_bytes) for device in request.devices
        ]
        self._devices: list[DeviceCosts] = []
        self._limits: list[float] = []  # in bytes, infinite if unknown
        for blocks, kept_free in zip(measured, self._kept_free, strict=True):
            limit = math.inf if blocks.limit_bytes is None else blocks.limit_bytes
            self._limits.append(max(0.0, limit - kept_free - joint.extra_memory))
            self._devices.append(DeviceCosts(blocks.points, len(graph.blocks)))
        self._first_limits = tuple(self._limits)
        self._micro_batch = request.micro_batch
        self._off: float | None = None

    def best(self) -> Placement:
        """The best cut. Raises NothingFits.

        The first call also decides on the micro-batch, if that is free.
        """
        placements: list[Placement] = []
        for size in self._sizes():
            try:
                placements.append(self._at(size))
            except NothingFits:
                if not placements:
                    raise
                break
        minimum = (1 - _NEARLY) * max(placed.throughput for placed in placements)
        best = next(placed for placed in placements if placed.throughput >= minimum)
        self._micro_batch = best.problem.micro_batch
        return best

    def _sizes(self) -> list[int]:
        """The micro-batches to choose from, the smallest first."""
        if self._micro_batch:
            return [self._micro_batch]
        maximum = min(_LARGEST, _BEYOND * max(costs.largest for costs in self._devices))
        return [2**power for power in range(maximum.bit_length())]

    def _at(self, micro_batch: int) -> Placement:
        try:
            return replace(
                place(self._problem(micro_batch, self._limits)), off=self._off
            )
        except NoPlacementError as error:
            raise self._nothing_fits(micro_batch, error.block) from None

    def _problem(self, micro_batch: int, limits: Sequence[float]) -> CutProblem:
        loads = []
        for costs, limit in zip(self._devices, limits, strict=True):
            loads.append(costs.load(micro_batch, limit))
        return CutProblem(
            self.graph,
            tuple(loads),
            micro_batch,
            self._request.in_a_step,
            self._latency_s,
            self._bytes_per_s,
        )

    def learn(
        self,
        placed: Placement,
        stamped: Sequence[Timeline],
        step_times_s: Sequence[float],
    ) -> None:
        """Corrects the times of blocks and the latency of transfers by the stamped steps.

        They add up to the others then. The next window may be off by √2 times what this one's
        median may be, by as much as stamped steps are, and by as much as the promise for this cut
        was if a cut had been run before.
        """
        step_s = median(step_times_s)
        window = half_width(step_times_s)
        offs = [math.inf]
        if window is not None:
            offs = [math.sqrt(2) * window]
        ratios = [median([step.step_time_s for step in stamped]) / step_s]
        if placed.off is not None:
            ratios.append(step_s / placed.step_time_s)
        for ratio in ratios:
            offs.append(max(ratio, 1 / ratio) - 1)
        self._off = max(offs)
        steps = [step.lasting(step_s) for step in stamped]
        for device, costs in enumerate(self._devices):
            costs.learn(placed, device, steps)
        longer_s: list[float] = []
        for step in steps:
            longer_s += _longer_s(placed, step)
        if longer_s:
            self._latency_s = max(0.0, placed.problem.latency_s + median(longer_s))

    def corrected(self, placed: Placement) -> Placement:
        """The same placement and orders with the step that is expected by now."""
        problem = self._problem(placed.problem.micro_batch, self._limits)
        timeline = simulate(Cut(problem, placed.segments), placed.orders)
        return replace(placed, problem=problem, timeline=timeline, off=self._off)

    def ran_out(self, placed: Placement, device: int | None) -> None:
        """Lowers the limit of a device, or of all if it is unknown which.

        A free micro-batch is chosen again.
        """
        for number, peak_bytes in enumerate(placed.peak_bytes):
            if peak_bytes and device in (None, number):
                self._limits[number] = min(self._limits[number], _LESS * peak_bytes)
        self._micro_batch = self._request.micro_batch

    def what_fits(self, micro_batch: int) -> str:
        """What to type instead: the largest micro-batch that fits.

        With the margin that turned out to be missing: `--micro-batch 16 fits: GPU:0 blocks 0–8 (0.9
        of 1 GiB), …`.
        """
        limits = list(self._limits)
        lacking = 0
        for first, now in zip(self._first_limits, self._limits, strict=True):
            if first < math.inf:
                lacking = max(lacking, int(first - now))
        margin = ""
        if lacking:
            margin = f"--margin {self._margin_with(lacking)} "
        for device, first in enumerate(self._first_limits):
            if first < math.inf:
                limits[device] = first - lacking
        for halvings in range(1, micro_batch.bit_length()):
            smaller = micro_batch >> halvings
            with suppress(NoPlacementError):
                placed = place(self._problem(smaller, limits))
                return f"{margin}--micro-batch {smaller} fits: {', '.join(self._stages(placed))}"
        instead = "more devices, or a smaller model"
        if any(self._kept_free):
            instead = f"a smaller --margin, {instead}"
        return f"no smaller micro-batch fits: take {instead}"

    def _margin_with(self, lacking: int) -> str:
        """What to type for the margin with so many bytes more."""
        typed = {}
        for device, kept_free in zip(
            self._request.devices, self._kept_free, strict=True
        ):
            typed[device.called] = f"{math.ceil((kept_free + lacking) / 2**20)}MiB"
        if len(set(typed.values())) == 1:
            return typed.popitem()[1]
        return ",".join(f"{device}={size}" for device, size in typed.items())

    def _stages(self, placed: Placement) -> Iterator[str]:
        for number, device in enumerate(self._request.devices):
            segments = [
                segment for segment in placed.segments if segment.device == number
            ]
            if segments:
                blocks = " ".join(
                    run_text(segment.first, segment.last) for segment in segments
                )
                needs = format_bytes(int(placed.peak_bytes[number]))
                limit = _limit_text(placed.problem.loads[number].memory_bytes)
                yield f"{device.label} blocks {blocks} ({needs} of {limit})"

    def _nothing_fits(self, micro_batch: int, block: int | None) -> NothingFits:
        texts = []
        for device, limit in zip(self._request.devices, self._limits, strict=True):
            texts.append(f"{device.label} {_limit_text(limit)}")
        devices = ", ".join(texts)
        if block is None:
            message = (
                f"no cut of {self._request.settings.model} into stages fits: micro-batches of "
                f"{micro_batch} on {devices}"
            )
        else:
            name = self.graph.blocks[block].name
            message = (
                f"the block that begins with {name} does not fit on any device "
                f"({devices})"
            )
        return NothingFits(message, remedy=self.what_fits(micro_batch))


def _longer_s(placed: Placement, step: Timeline) -> Iterator[float]:
    """How much longer than planned each transfer took to a device that had nothing else to do.

    A device that was busy may not have looked for it at once.
    """
    sizes = {}
    for link in placed.links:
        sizes[frozenset((link.source, link.target))] = link.bytes_per_sample
    ends_s = {timed.task: timed.end_s for timed in step.tasks}
    free_s = dict.fromkeys((segment.device for segment in placed.segments), 0.0)
    for timed in step.tasks:
        was_free = free_s[timed.device]
        for source in inputs_of(timed.task, placed.links):
            is_sent = placed.segments[source.segment].device != timed.device
            if is_sent and was_free <= ends_s[source] == timed.sent_s:
                size = sizes[frozenset((source.segment, timed.segment))]
                yield timed.ready_s - timed.sent_s - placed.problem.transfer_s(size)
        free_s[timed.device] = timed.end_s


def _limit_text(limit_bytes: float) -> str:
    """A device's memory as text."""
    known_bytes = None
    if limit_bytes < math.inf:
        known_bytes = int(limit_bytes)
    return format_bytes(known_bytes)


class DeviceCosts:
    """The blocks' points on one device, and the factors by which they differ in the pipeline."""

    def __init__(self, points: Sequence[BlockTimed], count: int) -> None:
        self._points: list[list[BlockTimed]] = [[] for _ in range(count)]  # by block
        for point in points:
            self._points[point.block].append(point)
        self._sizes = {point.micro_batch for point in points}
        self.largest = max(self._sizes, default=1)
        # Of each block's forward, backward and update
        self._factors = np.ones((count, 3))

    def load(self, micro_batch: int, limit_bytes: float) -> BlockLoad:
        """What blocks take at a micro-batch.

        `limit_bytes` is lowered by the most that a block takes for a moment.
        """
        costs = np.array([self._cost(points, micro_batch) for points in self._points])
        costs[:, :3] *= self._factors
        forward_s, backward_s, update_s, fixed, live, working = map(
            tuple, costs.T.tolist()
        )
        return BlockLoad(
            forward_s, backward_s, update_s, fixed, live, limit_bytes - max(working)
        )

    def _cost(self, points: Sequence[BlockTimed], micro_batch: int) -> list[float]:
        """A block's forward, backward, update, and fixed, live and working bytes.

        Straight lines between the measured sizes and beyond; memory in proportion to the largest's.
        A block that did not fit at a size at which others were measured does not fit from there on:
        then its seconds are infinite.
        """
        if not points:
            return _DOES_NOT_FIT
        largest = max(points, key=lambda point: point.micro_batch)
        if any(largest.micro_batch < size <= micro_batch for size in self._sizes):
            return _DOES_NOT_FIT
        times = micro_batch / largest.micro_batch
        forward = monotone_curve(
            [(point.micro_batch, median(point.forward_s)) for point in points]
        )
        backward = monotone_curve(
            [(point.micro_batch, median(point.backward_s)) for point in points]
        )
        return [
            forward.step_time_s(micro_batch),
            backward.step_time_s(micro_batch),
            median([median(point.update_s) for point in points]),
            largest.fixed_bytes,
            times * (largest.held_bytes or 0),
            times * (largest.working_bytes or 0),
        ]

    def learn(self, placed: Placement, device: int, steps: Sequence[Timeline]) -> None:
        """Rescales blocks that ran here by their segment's factor in these steps.

        Others are rescaled by the mean of those factors.
        """
        costs = placed.costs
        factors = np.full_like(self._factors, np.nan)
        expected_s = 0.0  # of the update
        for number, segment in enumerate(placed.segments):
            if segment.device == device:
                forward_s = max(costs.forward_s[number], _LEAST_S)
                backward_s = max(costs.backward_s[number], _LEAST_S)
                factors[segment.blocks, 0] = (
                    _took_s(steps, number, "forward") / forward_s
                )
                factors[segment.blocks, 1] = (
                    _took_s(steps, number, "backward") / backward_s
                )
                expected_s += costs.update_s[number]
        if np.isnan(factors).all():
            return  # nothing ran here
        updates_s = []
        for step in steps:
            for update in step.updates:
                if update.device == device:
                    updates_s.append(update.end_s - update.start_s)
        factors[:, 2] = median(updates_s) / expected_s if expected_s > 0 else 1.0
        self._factors *= np.where(
            np.isnan(factors), np.nanmean(factors, axis=0), factors
        )


def _took_s(steps: Sequence[Timeline], segment: int, kind: Pass) -> float:
    """The median over steps of a segment's mean pass."""
    means_s = []
    for step in steps:
        passes = [
            task for task in step.tasks if task.segment == segment and task.kind == kind
        ]
        means_s.append(mean([task.end_s - task.start_s for task in passes]))
    return median(means_s)
