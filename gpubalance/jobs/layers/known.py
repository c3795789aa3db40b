"""What is known of the blocks on each device, corrected by each cut that was run, and the best cut by it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpubalance.errors import NothingFits
from gpubalance.jobs.layers.costs import DeviceCosts
from gpubalance.jobs.layers.fits import what_fits
from gpubalance.jobs.layers.kept import Blocks
from gpubalance.numbers.stats import half_width, median
from gpubalance.numbers.units import format_bytes
from gpubalance.planning.pipeline.place import NoPlacementError, Placement, place
from gpubalance.planning.pipeline.problem import Problem
from gpubalance.planning.pipeline.simulate import inputs_of, simulate
from gpubalance.planning.pipeline.timeline import Timeline
from gpubalance.settings.requests import LayersRequest

# The smallest micro-batch within this part of the best throughput is taken.
_NEARLY = 0.05
_LARGEST, _BEYOND = 4096, 4  # the bounds of micro-batches: samples, and times the largest measured one
# The link between GPUs until it is measured: PCIe 3.0 with 16 lanes, less its overhead.
_GPU_BYTES_PER_S, _GPU_LATENCY_S = 10e9, 50e-6
# The part of what a device was planned to take when it ran out of memory that it is given next.
_LESS = 0.95


@dataclass(frozen=True)
class Planned:
    """A placement, and the problem that it solves best. Its step may be longer or shorter by the part `off`."""

    problem: Problem
    placement: Placement
    off: float | None = None

    @property
    def step_time_s(self) -> float:
        """By the simulated schedule."""
        return self.placement.timeline.step_time_s

    @property
    def ci95(self) -> tuple[float, float] | None:
        """Where the median step of a window is expected; None before a cut was run."""
        if self.off is None or self.off == math.inf:
            return None
        return self.step_time_s / (1 + self.off), self.step_time_s * (1 + self.off)

    @property
    def throughput(self) -> float:
        """Samples per second, by the simulated schedule."""
        return self.problem.micro_batch * self.problem.micro_batches / self.step_time_s


class Known:
    """What blocks take alone, and the factors by which they differ in the pipeline."""

    def __init__(self, request: LayersRequest, measured: Sequence[Blocks]) -> None:
        self.graph = graph = measured[0].graph
        self._request = request
        self._devices = [DeviceCosts(len(graph.blocks), one) for one in measured]
        simulated = request.devices[0].simulated
        extra = request.margin_bytes + (request.joint.extra_memory if simulated else 0)
        self._limits = [None if one.limit_bytes is None else one.limit_bytes - extra for one in measured]
        self._first_limits = tuple(self._limits)
        self._latency_s = request.joint.link_latency_s if simulated else _GPU_LATENCY_S
        self._bytes_per_s = request.joint.link_bytes_per_s if simulated else _GPU_BYTES_PER_S
        self._micro_batch = request.micro_batch
        self._off: float | None = None

    def best(self) -> Planned:
        """The best cut; the first call also decides on the micro-batch if that is free. Raises NothingFits."""
        if self._micro_batch is not None:
            return self._at(self._micro_batch)
        found = list(self._sizes())
        if not found:
            return self._at(1)
        most = max(one.throughput for one in found)
        best = next(one for one in found if one.throughput >= (1 - _NEARLY) * most)
        self._micro_batch = best.problem.micro_batch
        return best

    def _sizes(self) -> Iterator[Planned]:
        """The best cut for each micro-batch, doubling it until none fits."""
        size, most = 1, min(_LARGEST, _BEYOND * max(one.largest for one in self._devices))
        while size <= most:
            try:
                yield self._at(size)
            except NothingFits:
                return
            size *= 2

    def _at(self, micro_batch: int) -> Planned:
        problem = self.problem(micro_batch)
        try:
            return Planned(problem, place(problem), self._off)
        except NoPlacementError as error:
            raise self._nothing_fits(micro_batch, error) from None

    def problem(self, micro_batch: int) -> Problem:
        """The problem of cutting the model at this micro-batch."""
        return self._problem(micro_batch, self._limits)

    def _problem(self, micro_batch: int, limits: Sequence[int | None]) -> Problem:
        loads = [one.load(micro_batch, limit) for one, limit in zip(self._devices, limits, strict=True)]
        return Problem(
            self.graph,
            tuple(loads),
            micro_batch,
            self._request.in_a_step,
            self._latency_s,
            self._bytes_per_s,
            least_devices=2,
        )

    def learn(self, planned: Planned, stamped: Sequence[Timeline], step_times_s: Sequence[float]) -> None:
        """Corrects the times of blocks and the latency of transfers by the stamped steps, to add up to the others.

        The next window may be off by √2 times what this one's median may be, by as much as stamped steps are, and by as
        much as the promise for this cut was if a cut had been run before.
        """
        placed, step_s = planned.placement, median(step_times_s)
        steps = [one.lasting(step_s) for one in stamped]
        stamps = median([one.step_time_s for one in stamped]) / step_s
        missed = 1.0 if planned.off is None else step_s / planned.step_time_s
        window = half_width(step_times_s)
        known = math.inf if window is None else math.sqrt(2) * window
        self._off = max(known, *(max(part, 1 / part) - 1 for part in (stamps, missed)))
        for device, costs in enumerate(self._devices):
            own = {number: segment for number, segment in enumerate(placed.segments) if segment.device == device}
            if own:
                costs.learn(own, planned.problem.loads[device], device, steps)
        over_s = [one for step in steps for one in self._beyond_bytes_s(planned, step)]
        if over_s:
            self._latency_s = max(0.0, median(over_s))

    def _beyond_bytes_s(self, planned: Planned, timeline: Timeline) -> Iterator[float]:
        """For each transfer between devices, how much longer it took than its bytes need."""
        placed = planned.placement
        sizes = {frozenset((link.source, link.target)): link.bytes_per_sample for link in placed.links}
        ends = {timed.task: timed.end_s for timed in timeline.tasks}
        for timed in timeline.tasks:
            for other in inputs_of(timed.task, placed.links):
                size = sizes.get(frozenset((other.segment, timed.task.segment)))
                if size is not None and placed.segments[other.segment].device != timed.device:
                    sent = planned.problem.micro_batch * size
                    yield timed.ready_s - ends[other] - (sent / self._bytes_per_s if self._bytes_per_s else 0.0)

    def corrected(self, planned: Planned) -> Planned:
        """The same placement and orders with the step that is expected by now."""
        problem, placed = self.problem(planned.problem.micro_batch), planned.placement
        costs = problem.costs(placed.segments, placed.links)
        timeline = simulate(placed.segments, placed.links, placed.orders, costs)
        return Planned(problem, replace(placed, timeline=timeline), self._off)

    def ran_out(self, planned: Planned, device: int | None) -> None:
        """Lowers the limit of a device, or of all if it is unknown which. A free micro-batch is chosen again."""
        for one in [device] if device is not None else range(len(self._limits)):
            limit, taken = self._limits[one], _LESS * planned.placement.peak_bytes[one]
            if taken:
                self._limits[one] = int(taken if limit is None else min(limit, taken))
        self._micro_batch = self._request.micro_batch

    def what_fits(self, micro_batch: int) -> str:
        """What to type instead, with the margin that turned out to be missing."""
        pairs = [*zip(self._first_limits, self._limits, strict=True)]
        lacks = max((first - now for first, now in pairs if first is not None and now is not None), default=0)
        limits = [now if first is None else first - lacks for first, now in pairs]
        found = what_fits(lambda size: self._problem(size, limits), micro_batch, self._request.devices)
        margin = -(-(self._request.margin_bytes + lacks) >> 20)
        return f"--margin {margin}MiB {found}" if lacks and found.startswith("--") else found

    def _nothing_fits(self, micro_batch: int, error: NoPlacementError) -> NothingFits:
        devices = ", ".join(
            f"{device.label} {format_bytes(limit)}"
            for device, limit in zip(self._request.devices, self._limits, strict=True)
        )
        if error.block is not None:
            name = self.graph.blocks[error.block].name
            return NothingFits(
                f"the block that begins with {name} is larger than every device ({devices})",
                remedy=self.what_fits(micro_batch),
            )
        return NothingFits(
            f"no cut of {self._request.settings.model} into stages fits: micro-batches of {micro_batch} on {devices}",
            remedy=self.what_fits(micro_batch),
        )
