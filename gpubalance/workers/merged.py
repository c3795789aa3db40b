"""Merges the replies of the processes of a run over hosts into one."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gpubalance.results.timing import Pulled, Timing
from gpubalance.workers.messages import AnyReply, Measured, Ready


def merged(replies: Sequence[AnyReply]) -> AnyReply:
    """Merges replies of one kind, given in the devices' order. Compares only durations: each host has its own clock."""
    first = replies[0]
    update: dict[str, object] = {}
    if isinstance(first, Ready):
        update = {"memory_limit_bytes": _joined(replies, "memory_limit_bytes")}
    elif isinstance(first, Measured):
        late = [reply.late_part for reply in replies if isinstance(reply, Measured) and reply.late_part is not None]
        update = {"memory_peak_bytes": _joined(replies, "memory_peak_bytes"), "late_part": max(late, default=None)}
    elif isinstance(first, Pulled):  # a step waits for the slowest pipeline
        return max((reply for reply in replies if isinstance(reply, Pulled)), key=lambda one: one.seconds / one.batches)
    elif isinstance(first, Timing):
        timings = [reply for reply in replies if isinstance(reply, Timing)]
        stamped = {name: _joined(replies, name) for name in ("compute_s", "update_s") if first.compute_s is not None}
        update = {
            **stamped,
            "ended_s": time.monotonic(),
            "input_wait_s": _input_wait_s(timings),
            "loss_is_finite": all(timing.loss_is_finite for timing in timings),
        }
    return first.model_copy(update=update)


def _input_wait_s(timings: Sequence[Timing]) -> float:
    """How much later the last device finished computing because it waited; without stamps the longest wait."""
    computes = [sum(timing.compute_s or ()) for timing in timings]
    last_s = max(timing.input_wait_s + compute for timing, compute in zip(timings, computes, strict=True))
    return max(0.0, last_s - max(computes))


def _joined(replies: Sequence[AnyReply], name: str) -> tuple[object, ...]:
    return tuple(value for reply in replies for value in getattr(reply, name) or ())
