"""The requests to a worker whose model was opened to be cut; see Worker for what they raise.

OutOfMemory, and DeadlinePassed for a hanging device, name the device and what it was doing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.planning.pipeline.graph import Graph
from gpubalance.results.block import BlockTimed
from gpubalance.results.timing import Timing
from gpubalance.workers.layers_messages import Describe, Described, Pipe, TimeBlocks
from gpubalance.workers.messages import Measured
from gpubalance.workers.worker import Worker

_DESCRIBES_WITHIN_S = 300.0
# The fraction of a silent worker's time after which it may itself report which of its devices hangs.
_PATIENCE_PART = 0.5


def describe(worker: Worker, cuts: Sequence[str] = ()) -> Graph:
    """The model's blocks. With `cuts` they begin at these layers; BadInput says why one can't begin there."""
    doing = "reading the model's graph"
    return worker.ask(Describe(cuts=tuple(cuts)), Described, _DESCRIBES_WITHIN_S, doing).graph


def time_blocks(worker: Worker, request: TimeBlocks) -> Iterator[BlockTimed]:
    """Times each block on the worker's one device.

    The first block that the device can't hold raises OutOfMemory, and the later ones are not timed.
    """
    doing = f"timing blocks of the model on {worker.devices[0].label}"
    replies = worker.replies(request, (BlockTimed, Measured), doing)
    return (reply for reply in replies if isinstance(reply, BlockTimed))


def pipe(worker: Worker, request: Pipe) -> Iterator[Timing | Measured]:
    """Trains in these segments: yields each timing as it comes, and finally Measured."""
    steps = request.steps_per_timing
    patient = request.model_copy(update={"patience_s": _PATIENCE_PART * worker.patience_s(None, steps)})
    doing = f"training in {len(request.segments)} segments on {worker.names}"
    return worker.replies(patient, (Timing, Measured), doing, steps=steps)
