"""Of several processes that train one model, whose failure explains those of the others."""

from __future__ import annotations

from enum import IntEnum, auto

from gpubalance.errors import EnvironmentFault, GpubalanceError, PartialResult
from gpubalance.workers.messages import AnyReply, Failed

# What one process gave when all were asked
Answer = AnyReply | GpubalanceError


class Blame(IntEnum):
    """How well an answer explains others' failures: the first of these that occurs is reported.

    One that is out of memory, ends or is silent leaves the others waiting.
    """

    MEMORY = auto()
    DEATH = auto()
    OWN = auto()
    SILENCE = auto()
    PEER = auto()
    NONE = auto()


def blame_of(answer: Answer) -> Blame:
    """What is the matter with the process that gave this answer."""
    match answer:
        case Failed(disguised=True):  # another's lack of memory may end NCCL here
            return Blame.OWN
        case Failed(fault="memory"):
            return Blame.MEMORY
        case Failed(fault="peer"):
            return Blame.PEER
        case Failed():
            return Blame.OWN
        case PartialResult() | EnvironmentFault():
            return Blame.DEATH
        case GpubalanceError():
            return Blame.SILENCE
    return Blame.NONE
