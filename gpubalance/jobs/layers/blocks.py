"""Measures what each block of a model takes on each device, in workers of one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.once import Once
from gpubalance.planning.pipeline.graph import Graph
from gpubalance.results.timing import BlockTimed
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.settings.requests import LayersRequest
from gpubalance.workers.messages import Describe, Described, Measured, TimeBlocks
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

# If no micro-batch is asked for: enough sizes to see how much of a block's time is fixed, and where it bends.
_SIZES = (8, 32, 128)
_TIMES, _SECONDS = 5, 0.02


class Blocks(Record):
    """All that was measured on a device alone. `limit_bytes` is what its allocator may take."""

    graph: Graph
    limit_bytes: int | None
    points: tuple[BlockTimed, ...]


def check_cuts(request: LayersRequest, once: Once, party: Party) -> None:
    """Raises Refused for a model that can't be cut, before minutes are spent on a probe of the whole model.

    `party` has one device. It is left without a worker, as the device is wanted for the probe.
    """
    if not all(once.had(_key(device), Blocks) for device in request.devices):
        party.ask(lambda worker: worker.ask(Describe(cuts=request.cuts), Described))
        party.end()
        party.load()


def time_blocks(
    request: LayersRequest, once: Once, parties: Sequence[Party], after: Party, watch: Watch
) -> tuple[Blocks, ...]:
    """Each device's blocks, measured or left by an interrupted command. Raises what a worker does, but OutOfMemory.

    `parties` have a device each; while one measures, the next loads TensorFlow, and at last the one `after` them.
    """
    return tuple(
        once(_key(device), Blocks, partial(_timed, request, device, party, then, watch))
        for device, party, then in zip(request.devices, parties, (*parties[1:], after), strict=True)
    )


def _key(device: Device) -> str:
    return f"blocks of {device.uuid}"


def _timed(request: LayersRequest, device: Device, party: Party, then: Party, watch: Watch) -> Blocks:
    """One device's blocks at the useful sizes; one that does not fit at a size is not tried at larger ones."""
    party.start(then=then)
    graph = party.ask(lambda worker: worker.ask(Describe(cuts=request.cuts), Described)).graph
    blocks, points = [*range(len(graph.blocks))], list[BlockTimed]()
    sizes = (request.micro_batch,) if request.micro_batch else _SIZES
    for size in sizes:
        if not blocks:
            break
        watch(Doing(f"{device.label}: measuring {len(blocks)} blocks, micro-batches of {size}"))
        measured = list(_at_size(party, request, blocks, size))
        fitting = [point.block for point in measured]
        points += measured
        if size == sizes[0] > 1:
            points += _at_size(party, request, sorted({*blocks} - {*fitting}), 1)
        blocks = fitting
    limit_bytes = party.facts.memory_limit_bytes[0]
    party.end()
    return Blocks(graph=graph, limit_bytes=limit_bytes, points=tuple(points))


def _at_size(party: Party, request: LayersRequest, blocks: Sequence[int], size: int) -> Iterator[BlockTimed]:
    """Measures the blocks that fit, and goes on after one that does not, on a GPU in a fresh process."""
    left = tuple(blocks)
    while left:
        found = list[BlockTimed]()
        asked = TimeBlocks(blocks=left, micro_batch=size, seconds=_SECONDS, at_least=_TIMES)
        try:
            party.ask(partial(_collect, request.cuts, asked, found))
            left = ()
        except OutOfMemory:
            left = left[len(found) + 1 :]
        yield from found


def _collect(cuts: Sequence[str], asked: TimeBlocks, into: list[BlockTimed], worker: Worker) -> None:
    if cuts:  # a fresh process does not know them
        worker.ask(Describe(cuts=tuple(cuts)), Described)
    replies = worker.replies(asked, BlockTimed, Measured)
    into.extend(reply for reply in replies if isinstance(reply, BlockTimed))
