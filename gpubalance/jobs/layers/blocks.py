"""What each block of a model takes on a device: measured alone, and corrected by the cuts that were
run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.numbers.stats import mean, median
from gpubalance.planning.model import monotone_curve
from gpubalance.planning.pipeline.place import Placement
from gpubalance.planning.pipeline.problem import BlockLoad
from gpubalance.planning.pipeline.timeline import Pass, Timeline
from gpubalance.results.timing import BlockTimed
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.settings.requests import LayersRequest
from gpubalance.workers.messages import Measured, TimeBlocks
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

# If no micro-batch is asked for: enough sizes to see how much of a block's time is fixed, and where
# it bends.
_SIZES = (8, 32, 128)
_TIMES, _SECONDS = 5, 0.02
_DOES_NOT_FIT = [math.inf, math.inf, 0.0, 0.0, 0.0, 0.0]


class MeasuredBlocks(Record):
    """All that was measured of blocks on a device alone. `limit_bytes` is what its allocator may
    take.
    """

    limit_bytes: int | None
    points: tuple[BlockTimed, ...]


def time_blocks(
    request: LayersRequest,
    count: int,
    journal: Journal,
    parties: Sequence[Party],
    after: Party,
    watch: Watch,
) -> list[MeasuredBlocks]:
    """Each device's blocks, measured or left by an interrupted command. Raises what a worker does,
    but OutOfMemory.

    `parties` have a device each; while one measures, the next loads TensorFlow, and at last the one
    `after` them.
    """
    return [
        journal.get_or_make(
            f"blocks of {device.uuid}",
            MeasuredBlocks,
            partial(_timed, request, count, device, party, then, watch),
        )
        for device, party, then in zip(request.devices, parties, (*parties[1:], after), strict=True)
    ]


def _timed(
    request: LayersRequest, count: int, device: Device, party: Party, then: Party, watch: Watch
) -> MeasuredBlocks:
    """One device's blocks at the useful sizes; one that does not fit at a size is not tried at
    larger ones.
    """
    party.start(then=then)
    blocks, points = [*range(count)], list[BlockTimed]()
    sizes = (request.micro_batch,) if request.micro_batch else _SIZES
    for size in sizes:
        if not blocks:
            break
        watch(Doing(f"{device.label}: measuring {len(blocks)} blocks, micro-batches of {size}"))
        measured = _at_size(party, blocks, size)
        fitting = [point.block for point in measured]
        points += measured
        if size == sizes[0] > 1:
            points += _at_size(party, sorted({*blocks} - {*fitting}), 1)
        blocks = fitting
    limit_bytes = party.facts.memory_limit_bytes[0]
    party.end()
    return MeasuredBlocks(limit_bytes=limit_bytes, points=tuple(points))


def _at_size(party: Party, blocks: Sequence[int], size: int) -> list[BlockTimed]:
    """Measures the blocks that fit, and goes on after one that does not, on a GPU in a fresh
    process.
    """
    found, left = list[BlockTimed](), tuple(blocks)

    def collect(worker: Worker) -> None:
        asked = TimeBlocks(blocks=left, micro_batch=size, seconds=_SECONDS, at_least=_TIMES)
        replies = worker.replies(asked, BlockTimed, Measured)
        found.extend(reply for reply in replies if isinstance(reply, BlockTimed))

    while left:
        before = len(found)
        try:
            party.ask(collect)
        except OutOfMemory as error:
            if error.fault is not None and not found:
                raise error.fault from None
        left = left[len(found) - before + 1 :]
    return found


class DeviceCosts:
    """The blocks' points on one device, and the factors by which they differ in the pipeline."""

    def __init__(self, points: Sequence[BlockTimed], count: int) -> None:
        self._points = [[one for one in points if one.block == block] for block in range(count)]
        self._sizes = {point.micro_batch for point in points}
        self.largest = max(self._sizes, default=1)
        self._factors = np.ones((count, 3))  # of each block's forward, backward and update

    def load(self, micro_batch: int, limit_bytes: float) -> BlockLoad:
        """What blocks take at a micro-batch; `limit_bytes` is lowered by the most that a block
        takes for a moment.
        """
        costs = np.array([self._cost(points, micro_batch) for points in self._points])
        costs[:, :3] *= self._factors
        forward_s, backward_s, update_s, fixed, live, working = map(tuple, costs.T.tolist())
        return BlockLoad(forward_s, backward_s, update_s, fixed, live, limit_bytes - max(working))

    def _cost(self, points: Sequence[BlockTimed], micro_batch: int) -> list[float]:
        """A block's forward, backward, update, and fixed, live and working bytes; seconds are
        infinite if it can't fit.

        Straight lines between the measured sizes and beyond; memory in proportion to the largest's.
        A block that did not fit at a size at which others were measured does not fit from there on.
        """
        largest = max(points, key=lambda point: point.micro_batch, default=None)
        if largest is None or any(
            largest.micro_batch < size <= micro_batch for size in self._sizes
        ):
            return _DOES_NOT_FIT
        by = micro_batch / largest.micro_batch
        forward = monotone_curve([(point.micro_batch, median(point.forward_s)) for point in points])
        backward = monotone_curve(
            [(point.micro_batch, median(point.backward_s)) for point in points]
        )
        return [
            forward.step_time_s(micro_batch),
            backward.step_time_s(micro_batch),
            median([median(point.update_s) for point in points]),
            largest.fixed_bytes,
            by * (largest.held_bytes or 0),
            by * (largest.working_bytes or 0),
        ]

    def learn(self, placed: Placement, device: int, steps: Sequence[Timeline]) -> None:
        """Rescales blocks that ran here by their segment's factor in these steps, others by the
        mean of those.
        """
        costs, own = (
            placed.costs,
            [n for n, one in enumerate(placed.segments) if one.device == device],
        )
        if not own:
            return
        factors = np.full_like(self._factors, np.nan)
        for number in own:
            blocks = placed.segments[number].blocks
            factors[blocks, 0] = _took_s(steps, number, "forward") / max(
                costs.forward_s[number], 1e-9
            )
            factors[blocks, 1] = _took_s(steps, number, "backward") / max(
                costs.backward_s[number], 1e-9
            )
        updates_s = [
            one.end_s - one.start_s
            for step in steps
            for one in step.updates
            if one.device == device
        ]
        expected_s = sum(costs.update_s[number] for number in own)
        factors[:, 2] = median(updates_s) / expected_s if expected_s > 0 else 1.0
        self._factors *= np.where(np.isnan(factors), np.nanmean(factors, axis=0), factors)


def _took_s(steps: Sequence[Timeline], segment: int, kind: Pass) -> float:
    """The median over steps of a segment's mean pass."""
    each = [[one for one in step.tasks if one[:2] == (segment, kind)] for step in steps]
    return median([mean([one.end_s - one.start_s for one in passes]) for passes in each])
