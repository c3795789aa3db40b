"""The size of packs of gradients that suits the link between a strategy's devices."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from gpubalance.engine.pace import PacedClock
from gpubalance.engine.replicas import Replicas, cached_on_replicas
from gpubalance.engine.sum_times import seconds_of_one_more, seconds_of_sum
from gpubalance.planning.sync import MIN_PACK_BYTES, best_pack_bytes

_FIRST_BYTES = 64 << 10
_TIMES_MORE = 8
# An all-reduce that takes so long tells how fast the link is.
_LONG_ENOUGH_S = 0.02


def pack_bytes_for(model: Any, replicas: Replicas) -> int:
    """Bytes of gradients to sum in one all-reduce; 0 for all, where none can hide behind compute.

    In a cluster all processes must call this together.
    """
    if any(isinstance(clock, PacedClock) for clock in replicas.clocks):
        return 0  # their gradients come all at once, when the profile's time is over
    gradient_bytes = 0
    for variable in model.trainable_variables:
        weight = variable.value
        gradient_bytes += math.prod(weight.shape) * weight.dtype.size
    if gradient_bytes <= MIN_PACK_BYTES:
        return 0
    latency_s, bytes_per_s = _link_of(replicas, gradient_bytes)
    return best_pack_bytes(gradient_bytes, latency_s, bytes_per_s)


@cached_on_replicas
def _link_of(replicas: Replicas, max_bytes: int) -> tuple[float, float]:
    """The seconds of one more all-reduce of a number, and the bytes per second of larger ones.

    It tries larger ones until one takes long enough to tell, up to `max_bytes`.
    """
    everywhere = tuple(range(replicas.count))
    seconds_of = partial(seconds_of_sum, replicas, everywhere)
    smallest_s = seconds_of(0)
    size = min(_FIRST_BYTES, max_bytes)
    took_s = seconds_of(size)
    while took_s < _LONG_ENOUGH_S and size < max_bytes:
        size = min(_TIMES_MORE * size, max_bytes)
        took_s = seconds_of(size)
    bytes_per_s = math.inf
    beyond_s = took_s - smallest_s
    if beyond_s > 0:
        bytes_per_s = size / beyond_s
    return seconds_of_one_more(replicas, everywhere), bytes_per_s
