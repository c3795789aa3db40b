"""Measures what each block of a model takes on each device, in workers of one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.once import Once
from gpubalance.jobs.layers.kept import BlockPoint, Blocks
from gpubalance.numbers.stats import median
from gpubalance.results.piped import BlockTimed
from gpubalance.settings.device import Device
from gpubalance.settings.requests import LayersRequest
from gpubalance.workers.layers import describe
from gpubalance.workers.layers import time_blocks as time_runs
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

# If no micro-batch is asked for: enough sizes to see how much of a block's time is fixed, and where it bends.
_SIZES = (8, 32, 128)
_TIMES, _SECONDS = 5, 0.02


def check_cuts(request: LayersRequest, once: Once, party: Party) -> None:
    """Raises Refused for a model that can't be cut, before minutes are spent on a probe of the whole model.

    `party` has one device. It is left without a worker, as the device is wanted for the probe.
    """
    if not all(once.had(_key(device), Blocks) for device in request.devices):
        party.ask(lambda worker: describe(worker, request.cuts))
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
    party.start(then=then)
    graph = party.ask(lambda worker: describe(worker, request.cuts))
    points = tuple(_points(party, request, device, range(len(graph.blocks)), watch))
    limit_bytes = party.facts.memory_limit_bytes[0]
    party.end()
    return Blocks(graph=graph, limit_bytes=limit_bytes, points=points)


def _points(
    party: Party, request: LayersRequest, device: Device, blocks: Sequence[int], watch: Watch
) -> Iterator[BlockPoint]:
    """Measures each block at the useful sizes; one that does not fit at a size is not tried at larger ones."""
    sizes = (request.micro_batch,) if request.micro_batch else _SIZES
    for size in sizes:
        if not blocks:
            return
        watch(Doing(f"{device.label}: measuring {len(blocks)} blocks, micro-batches of {size}"))
        measured = list(_at_size(party, request, blocks, size))
        yield from measured
        fitting = [point.block for point in measured]
        if size == sizes[0] > 1:
            yield from _at_size(party, request, sorted(set(blocks) - set(fitting)), 1)
        blocks = fitting


def _at_size(party: Party, request: LayersRequest, blocks: Sequence[int], size: int) -> Iterator[BlockPoint]:
    """Measures the blocks that fit, and goes on after one that does not, on a GPU in a fresh process."""
    left = list(blocks)
    while left:
        found: list[BlockTimed] = []
        try:
            party.ask(partial(_collect, cuts=request.cuts, blocks=left, size=size, into=found))
            done = len(left)
        except OutOfMemory:
            done = len(found) + 1
        yield from (_point(timed, size) for timed in found)
        left = left[done:]


def _collect(worker: Worker, cuts: Sequence[str], blocks: Sequence[int], size: int, into: list[BlockTimed]) -> None:
    if cuts:  # a fresh process does not know them
        describe(worker, cuts)
    runs = tuple((block, block) for block in blocks)
    into.extend(time_runs(worker, runs, size, seconds=_SECONDS, at_least=_TIMES))


def _point(timed: BlockTimed, size: int) -> BlockPoint:
    return BlockPoint(
        block=timed.first,
        micro_batch=size,
        forward_s=median(timed.forward_s),
        backward_s=median(timed.backward_s),
        update_s=median(timed.update_s),
        fixed_bytes=timed.fixed_bytes,
        held_bytes=timed.held_bytes,
        working_bytes=timed.working_bytes,
    )
