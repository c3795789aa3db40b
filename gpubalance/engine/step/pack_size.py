"""The size of packs of gradients that suits the link between a strategy's devices."""

from __future__ import annotations

import functools
import math
import time
from typing import Any

import tensorflow as tf

from gpubalance.engine.hosts import what_all_say
from gpubalance.engine.pace import PacedClock
from gpubalance.engine.place import Place
from gpubalance.engine.step.sums import over_replicas
from gpubalance.planning.packs import LEAST_BYTES, best_pack_bytes

_TIMES = 3  # the fastest counts
_FIRST_BYTES = 64 << 10
_TIMES_MORE = 8
# An all-reduce that takes so long tells how fast the link is.
_LONG_ENOUGH_S = 0.02


def pack_bytes_for(model: Any, place: Place) -> int:
    """Bytes of gradients to sum in one all-reduce; 0 for all at once, where none can hide behind
    compute.

    In a cluster all processes must call this together.
    """
    if any(isinstance(clock, PacedClock) for clock in place.clocks):
        return 0  # their gradients come all at once, when the profile's time is over
    weights = (variable.value for variable in model.trainable_variables)
    gradient_bytes = sum(math.prod(weight.shape) * weight.dtype.size for weight in weights)
    if gradient_bytes <= LEAST_BYTES:
        return 0
    best = best_pack_bytes(gradient_bytes, *_link_of(place, gradient_bytes))
    return best if best < gradient_bytes else 0


@functools.cache
def _link_of(place: Place, most_bytes: int) -> tuple[float, float]:
    """The seconds of the smallest all-reduce, and the bytes per second that larger ones sum beyond
    that.

    It tries larger ones until one takes long enough to tell, up to `most_bytes`. The first
    process's clock counts.
    """

    @tf.function(input_signature=[tf.TensorSpec((), tf.int32)], autograph=False)
    def summed(count: Any) -> Any:
        def on_replica() -> Any:
            return over_replicas([tf.fill([count], 1.0)])[0][0]

        return place.strategy.experimental_local_results(place.strategy.run(on_replica))

    all_say = what_all_say(place.strategy, place.cluster)

    def seconds_of(size: int) -> float:
        taken = []
        for _ in range(_TIMES):
            began = time.perf_counter()
            for total in summed(tf.constant(max(1, size // 4))):
                total.numpy()  # waits for the device
            taken.append(time.perf_counter() - began)
        return all_say(min(taken))[0]

    latency_s, size = seconds_of(0), min(_FIRST_BYTES, most_bytes)
    while (took_s := seconds_of(size)) < _LONG_ENOUGH_S and size < most_bytes:
        size = min(_TIMES_MORE * size, most_bytes)
    beyond_s = took_s - latency_s
    return latency_s, size / beyond_s if beyond_s > 0 else math.inf
