"""The size of packs of gradients that suits the link between a strategy's devices."""

from __future__ import annotations

import functools
import math
import time
from typing import Any

import tensorflow as tf

from gpubalance.engine.hosts import gather_over
from gpubalance.engine.pace import PacedClock
from gpubalance.engine.replicas import Replicas
from gpubalance.engine.step.sums import over_replicas
from gpubalance.planning.packs import LEAST_BYTES, best_pack_bytes

_TIMES = 3  # the fastest counts
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
    if gradient_bytes <= LEAST_BYTES:
        return 0
    latency_s, bytes_per_s = _link_of(replicas, gradient_bytes)
    return best_pack_bytes(gradient_bytes, latency_s, bytes_per_s)


@functools.cache
def _link_of(replicas: Replicas, most_bytes: int) -> tuple[float, float]:
    """The seconds of the smallest all-reduce, and the bytes per second of larger ones beyond that.

    It tries larger ones until one takes long enough to tell, up to `most_bytes`. The first
    process's clock counts.
    """

    @tf.function(input_signature=[tf.TensorSpec((), tf.int32)], autograph=False)
    def summed(count: Any) -> Any:
        def on_replica() -> Any:
            return over_replicas([tf.fill([count], 1.0)])[0][0]

        return replicas.strategy.experimental_local_results(
            replicas.strategy.run(on_replica)
        )

    gather = gather_over(replicas.strategy, replicas.cluster)

    def seconds_of(size: int) -> float:
        times_s = []
        for _ in range(_TIMES):
            began_s = time.perf_counter()
            for total in summed(tf.constant(max(1, size // 4))):
                total.numpy()  # waits for the device
            times_s.append(time.perf_counter() - began_s)
        return gather(min(times_s))[0]

    latency_s = seconds_of(0)
    size = min(_FIRST_BYTES, most_bytes)
    took_s = seconds_of(size)
    while took_s < _LONG_ENOUGH_S and size < most_bytes:
        size = min(_TIMES_MORE * size, most_bytes)
        took_s = seconds_of(size)
    bytes_per_s = math.inf
    beyond_s = took_s - latency_s
    if beyond_s > 0:
        bytes_per_s = size / beyond_s
    return latency_s, bytes_per_s
