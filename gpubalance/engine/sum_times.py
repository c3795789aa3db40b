"""How long sums over replicas take, of all replicas or of some, with nothing else to do."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import tensorflow as tf

from gpubalance.engine.keras_patches import collective_ops, taking_keys_at_once
from gpubalance.engine.replicas import Replicas, build_strategy, cached_on_replicas
from gpubalance.engine.runtime import gather_over, implementation_of, rounds
from gpubalance.engine.step.sums import over_replicas

_MIN_TIMES = 3
# The long function has this many sums more than the short one: latency = (long - short) / this.
_MORE_SUMS = 16
# By these numbers the processes of a cluster find each other in a sum: the number of their group,
# far from those of strategies' groups, and the number of the sum, new each time. All processes must
# draw the same ones.
_group_numbers = itertools.count(1 << 21)
_sum_numbers = itertools.count(1)

# Sums vectors of so many float32 (an int32 scalar). Returns a scalar for each replica of this
# process that takes part: one element of its last sum. It is there once the sum has ended.
Sum: TypeAlias = Callable[[Any], Iterable[Any]]


def seconds_of_sum(
    replicas: Replicas,
    replica_indices: tuple[int, ...],
    nbytes: int,
    *,
    repeat_for_s: float = 0.0,
) -> float:
    """The seconds of a sum of `nbytes` bytes of float32 over these replicas: the fastest of some.

    The step's gradients are summed by the same operation. `Session.time_sums` and `pack_size` call
    this. It repeats the sum for `repeat_for_s` seconds, and at least three times: on a busy machine
    many sums are slower. In a cluster all processes must call this together; the slowest process's
    time counts.
    """
    return _seconds_of(replicas, replica_indices, nbytes, 1, repeat_for_s)


def seconds_of_one_more(replicas: Replicas, replica_indices: tuple[int, ...]) -> float:
    """The latency: the seconds by which one more sum of a single number lengthens a function.

    A function with one sum takes several times as long, but most of that is the cost of its start,
    which a step pays once for all its sums. So this is the difference of 17 sums and 1, over 16. In
    a cluster all processes must call this together.
    """
    short_s = _seconds_of(replicas, replica_indices, 0, 1, 0.0)
    long_s = _seconds_of(replicas, replica_indices, 0, 1 + _MORE_SUMS, 0.0)
    return max(0.0, long_s - short_s) / _MORE_SUMS


def _seconds_of(
    replicas: Replicas,
    replica_indices: tuple[int, ...],
    nbytes: int,
    sums: int,
    repeat_for_s: float,
) -> float:
    sum_of = sum_over(replicas, replica_indices, sums)
    exchange = gather_over(replicas.strategy, replicas.cluster)

    def as_rank_0_decides(goes_on: bool) -> bool:
        return bool(exchange(goes_on)[0])

    count = tf.constant(max(1, nbytes // 4))
    times_s = []
    for _ in rounds(repeat_for_s, _MIN_TIMES, as_rank_0_decides):
        began_s = time.perf_counter()
        for element in sum_of(count):
            element.numpy()  # waits for the device
        times_s.append(time.perf_counter() - began_s)
    fastest_of_each_process_s = exchange(min(times_s))
    return max(fastest_of_each_process_s)


@cached_on_replicas
def sum_over(
    replicas: Replicas, replica_indices: tuple[int, ...], sums: int = 1
) -> Sum:
    """A function that sums over these replicas `sums` times, one sum after the other.

    All processes of a cluster must make and call it, those without one of these replicas too.
    """
    if replicas.cluster is not None:
        return _between_processes(replicas, replica_indices, sums)
    names = tuple(replicas.names[index] for index in replica_indices)
    # For all replicas this is the strategy that they train with, as there is one for the same
    # devices: on GPUs each strategy takes memory of its own.
    strategy = build_strategy(names, replicas.summing.all_reduce, replicas.cluster)

    @tf.function(input_signature=[tf.TensorSpec((), tf.int32)], autograph=False)
    def summed(count: Any) -> Any:
        def on_replica() -> Any:
            (total,) = over_replicas([tf.fill([count], 1.0)])
            for _ in range(sums - 1):
                # Each sum takes the result of the one before, so that they can't overlap.
                (total,) = over_replicas([total / len(replica_indices)])
            return total[0]

        with taking_keys_at_once():
            return strategy.experimental_local_results(strategy.run(on_replica))

    return summed  # type: ignore[no-any-return]


def _between_processes(
    replicas: Replicas, replica_indices: tuple[int, ...], sums: int
) -> Sum:
    """A sum over some processes of a cluster, each of which has one replica.

    Only the whole cluster has a strategy. So this calls the operation by which that sums.
    """
    group = next(_group_numbers)
    (name,) = replicas.names
    kind, _, _ = name.partition(":")
    hint = implementation_of(replicas.summing.all_reduce, kind).value

    def sum_of_own(count: Any) -> Any:
        """This process's part in the sums; returns [] if it has none."""
        # Drawn by the processes that take no part too: all must draw the same numbers.
        sum_numbers = [next(_sum_numbers) for _ in range(sums)]
        if replicas.first_own not in replica_indices:
            return []
        total = tf.fill([count], float(len(replica_indices)))
        with tf.device(name):
            for sum_number in sum_numbers:
                total = collective_ops.all_reduce_v2(
                    total / len(replica_indices),
                    len(replica_indices),
                    group,
                    sum_number,
                    communication_hint=hint,
                )
            return [total[0]]

    return sum_of_own
