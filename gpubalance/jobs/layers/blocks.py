"""The blocks of a model: what a worker says of them, and what each takes on each device alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.results.timing import BlockTimed
from gpubalance.settings.device import Device
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
