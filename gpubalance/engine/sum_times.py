"""How long sums over replicas take, of all replicas or of some, with nothing else to do."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import tensorflow as tf

from gpubalance.engine.hosts import gather_over, implementation_of
from gpubalance.engine.keras_patches import collective_ops, taking_keys_at_once
from gpubalance.engine.replicas import Replicas, build_strategy, kept_with_replicas
from gpubalance.engine.runtime import rounds
from gpubalance.engine.step.sums import over_replicas

_TIMES = 3
# Sums of one number that a function has beyond the first, to tell what each of them takes
_MORE_SUMS = 16
# Groups of a cluster's processes and their sums have numbers, which are the same in all processes,
# and far from those of strategies.
_group_numbers = itertools.count(1 << 21)
_sum_numbers = itertools.count(1)

# Sums so many numbers, and returns one of each sum that this process has
Sum: TypeAlias = Callable[[Any], Iterable[Any]]


def seconds_of_sum(
    replicas: Replicas, places: tuple[int, ...], nbytes: int, *, within_s: float = 0.0
) -> float:
    """The seconds of a sum of so many bytes of float32 over the replicas at these places.

    Gradients are summed in the same way. The fastest of all sums `within_s` counts, and of a few at
    least, as many are slower on a busy machine. In a cluster all processes must call this together,
    and the slowest one's time counts.
    """
    return _seconds_of(replicas, places, nbytes, 1, within_s)


def seconds_of_one_more(replicas: Replicas, places: tuple[int, ...]) -> float:
    """The seconds by which one more sum of a number lengthens a function: its latency.

    A function with one sum takes several times as long, most of which a step pays once. In a
    cluster all processes must call this together.
    """
    one_s, all_s = (
        _seconds_of(replicas, places, 0, count, 0.0) for count in (1, 1 + _MORE_SUMS)
    )
    return max(0.0, all_s - one_s) / _MORE_SUMS


def _seconds_of(
    replicas: Replicas, places: tuple[int, ...], nbytes: int, sums: int, within_s: float
) -> float:
    sum_of = sum_over(replicas, places, sums)
    gather = gather_over(replicas.strategy, replicas.cluster)
    count = tf.constant(max(1, nbytes // 4))
    times_s = []
    for _ in rounds(within_s, _TIMES, lambda goes_on: bool(gather(goes_on)[0])):
        began_s = time.perf_counter()
        for total in sum_of(count):
            total.numpy()  # waits for the device
        times_s.append(time.perf_counter() - began_s)
    return max(gather(min(times_s)))


@kept_with_replicas
def sum_over(replicas: Replicas, places: tuple[int, ...], sums: int = 1) -> Sum:
    """A sum over the replicas at these places, or several, one after the other.

    All processes of a cluster must make and call it.
    """
    if replicas.cluster is not None:
        return _between_processes(replicas, places, sums)
    names = tuple(replicas.names[place] for place in places)
    # Of all replicas it is their own strategy: on GPUs each one has memory of its own.
    strategy = build_strategy(names, replicas.summing.all_reduce, replicas.cluster)

    @tf.function(input_signature=[tf.TensorSpec((), tf.int32)], autograph=False)
    def summed(count: Any) -> Any:
        def on_replica() -> Any:
            (total,) = over_replicas([tf.fill([count], 1.0)])
            for _ in range(sums - 1):
                (total,) = over_replicas([total / len(places)])
            return total[0]

        with taking_keys_at_once():
            return strategy.experimental_local_results(strategy.run(on_replica))

    return summed  # type: ignore[no-any-return]


def _between_processes(replicas: Replicas, places: tuple[int, ...], sums: int) -> Sum:
    """A sum over some processes of a cluster, as only the whole cluster has a strategy.

    It is the operation that the strategy sums with.
    """
    group = next(_group_numbers)
    (name,) = replicas.names
    kind, _, _ = name.partition(":")
    hint = implementation_of(replicas.summing.all_reduce, kind).value

    def sum_of_own(count: Any) -> Any:
        """This process's part in a sum; nothing if it has none."""
        numbers = [next(_sum_numbers) for _ in range(sums)]
        if replicas.first_own not in places:
            return []
        total = tf.fill([count], float(len(places)))
        with tf.device(name):
            for number in numbers:
                total = collective_ops.all_reduce_v2(
                    total / len(places),
                    len(places),
                    group,
                    number,
                    communication_hint=hint,
                )
            return [total[0]]

    return sum_of_own
