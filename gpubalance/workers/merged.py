"""One reply out of those of several processes that train one model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from gpubalance.results.timing import Pulled, Timing
from gpubalance.workers.messages import AnyReply, Measured, Ready


def merged(replies: Sequence[Any]) -> AnyReply:
    """Merges replies of one kind, given in the devices' order.

    Compares only durations: each host has its own clock.
    """
    first: AnyReply = replies[0]
    match first:
        case Ready():
            limits = _of_all(replies, "memory_limit_bytes")
            return first.model_copy(update={"memory_limit_bytes": limits})
        case Measured():
            peaks = _of_all(replies, "memory_peak_bytes")
            late = [reply.late_part for reply in replies if reply.late_part is not None]
            return first.model_copy(
                update={
                    "memory_peak_bytes": peaks,
                    "late_part": max(late, default=None),
                }
            )
        case Pulled():  # a step waits for the slowest pipeline
            return max(replies, key=lambda pulled: pulled.seconds / pulled.batches)  # type: ignore[no-any-return]
        case Timing():
            return _merged_timing(first, replies)
    return first


def _merged_timing(first: Timing, timings: Sequence[Timing]) -> Timing:
    update: dict[str, object] = {
        "ended_s": time.monotonic(),
        "input_wait_s": _input_wait_s(timings),
        "loss_is_finite": all(timing.loss_is_finite for timing in timings),
    }
    if first.compute_s is not None:
        update["compute_s"] = _of_all(timings, "compute_s")
        update["update_s"] = _of_all(timings, "update_s")
    return first.model_copy(update=update)


def _of_all(replies: Sequence[Any], name: str) -> tuple[object, ...]:
    """The values of that field, of which each reply has its own device's."""
    values: list[object] = []
    for reply in replies:
        values += getattr(reply, name) or ()
    return tuple(values)


def _input_wait_s(timings: Sequence[Timing]) -> float:
    """How much later the last device finished computing because it waited for data.

    Without stamps it is the longest wait.
    """
    compute_s = [sum(timing.compute_s or ()) for timing in timings]
    pairs = zip(timings, compute_s, strict=True)
    last_s = max(timing.input_wait_s + seconds for timing, seconds in pairs)
    return max(0.0, last_s - max(compute_s))
