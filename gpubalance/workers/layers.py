"""The requests to a worker whose model was opened to be cut; see Worker for what they raise.

OutOfMemory, and DeadlinePassed for a hanging device, name the device and what it was doing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.planning.pipeline.graph import Graph
from gpubalance.planning.pipeline.segments import Segment
from gpubalance.planning.pipeline.timeline import Task
from gpubalance.results.piped import BlockTimed, Piped
from gpubalance.results.timing import Timing
from gpubalance.workers.layers_messages import BlocksTimed, Describe, Described, Pipe, TimeBlocks
from gpubalance.workers.messages import Measured
from gpubalance.workers.worker import Worker

_DESCRIBES_WITHIN_S = 300.0
# The fraction of a silent worker's time after which it may itself report which of its devices hangs.
_PATIENCE_PART = 0.5


def describe(worker: Worker, cuts: Sequence[str] = ()) -> Graph:
    """The model's blocks. With `cuts` they begin at these layers; BadInput says why one can't begin there."""
    doing = "reading the model's graph"
    return worker.ask(Describe(cuts=tuple(cuts)), Described, _DESCRIBES_WITHIN_S, doing).graph


def time_blocks(
    worker: Worker, runs: Sequence[tuple[int, int]], micro_batch: int, *, seconds: float = 0.0, at_least: int = 3
) -> Iterator[BlockTimed]:
    """Times each run of blocks, (first, last), alone on the worker's one device.

    The first run that the device can't hold raises OutOfMemory, and the later ones are not timed.
    """
    request = TimeBlocks(runs=tuple(runs), micro_batch=micro_batch, seconds=seconds, at_least=at_least)
    kinds = (BlockTimed, BlocksTimed)
    replies = worker.replies(request, kinds, f"timing blocks of the model on {worker.devices[0].label}")
    return (reply for reply in replies if isinstance(reply, BlockTimed))


def pipe(
    worker: Worker,
    segments: Sequence[Segment],
    order: Sequence[Sequence[Task]],
    micro_batch: int,
    micro_batches: int,
    *,
    seconds: float = 0.0,
    at_least: int = 1,
    steps_per_timing: int = 1,
    stamped: bool = False,
) -> Iterator[Timing | Piped | Measured]:
    """Trains in these segments, each device in its order; yields each timing as it comes, and finally Measured.

    A stamped timing is one step.
    """
    request = Pipe(
        segments=tuple(segments),
        order=tuple(map(tuple, order)),
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        seconds=seconds,
        at_least=at_least,
        steps_per_timing=steps_per_timing,
        stamped=stamped,
        patience_s=_PATIENCE_PART * worker.patience_s(None, steps_per_timing),
    )
    doing = f"training in {len(segments)} segments on {', '.join(device.label for device in worker.devices)}"
    return worker.replies(request, (Timing, Piped, Measured), doing, steps=steps_per_timing)
