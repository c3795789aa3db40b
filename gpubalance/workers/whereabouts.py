"""Finds where the processes of a cluster are when all are silent, and which of them keeps the others waiting.

A process that hangs makes all others wait for it in a collective, and from outside they look the same.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpubalance.workers.messages import AnyReply, Whereabouts

_LOG = 2  # the real stderr, whatever a user's program has assigned to sys.stderr
_OWN = "what its program does there does not end: a file, a lock, data that does not come"
_SUM = "the all-reduce hangs, or the network between them"


def whereabouts(session: Any) -> Whereabouts:
    """Where this process is, found from another thread than its main one. What all its threads do goes to the log."""
    faulthandler.dump_traceback(_LOG)
    computed, summed = session.progress if session is not None else (0, 0)
    return Whereabouts(computed=computed, summed=summed, at=_outside_of_tensorflow())


def _outside_of_tensorflow() -> str:
    """What the main thread does; empty if it is in TensorFlow and may wait for others, unless that reads data."""
    frames = [frame for frame, _ in traceback.walk_stack(sys._current_frames()[threading.main_thread().ident or 0])]
    modules = [str(frame.f_globals.get("__name__")) for frame in frames]
    if any(module.startswith("tensorflow.python.data.") for module in modules):
        return "waits for its data"
    # There TensorFlow waits for its own threads.
    innermost = next(n for n, module in enumerate(modules) if module != "threading")
    if modules[innermost].startswith("tensorflow."):
        return ""
    frame = frames[innermost]
    return f"is in {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"


@dataclass(frozen=True)
class Held:
    """The ranks that the others wait for, empty if unknown; what is known, and the cause if that is known."""

    ranks: list[int]
    how: str
    cause: str = ""


def held_up_by(told: Mapping[int, AnyReply | None], count: int) -> Held:
    """Which of `count` ranks the others wait for. `told` has the silent ones' answers, None if one did not answer."""
    dumb = [rank for rank, one in told.items() if one is None]
    where = {rank: one for rank, one in told.items() if isinstance(one, Whereabouts)}
    if len(dumb) + len(where) < len(told):
        return Held([], "then some went on", "they are slow, or the deadline is short")
    if dumb:
        how = "does not answer from another thread either"
        return Held(dumb if len(dumb) < count else [], how, "it is stopped, or its interpreter is held")
    last = min(one.computed for one in where.values())
    behind = {rank: one for rank, one in where.items() if one.computed == last}
    outside = [rank for rank, one in behind.items() if one.at]
    if outside and len(outside) < count:
        return Held(outside, behind[outside[0]].at, _OWN)
    computing = [rank for rank, one in behind.items() if one.summed == one.computed]
    if len(computing) == len(behind) < len(where):
        return Held(computing, "has not computed its gradients")
    if len(where) < count:
        return Held(list(where), "is in TensorFlow, where it has nobody left to wait for")
    if not computing and not outside:
        return Held([], "each has computed its gradients and waits for their sum", _SUM)
    return Held([], "which of them the others wait for can't be told")
