"""Checks a strategy's all-reduce with numbers whose sum is known, before gradients depend on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from gpubalance.engine.replicas import Replicas, kept_with_replicas
from gpubalance.engine.step.points import number_of_replica
from gpubalance.engine.step.sums import over_replicas
from gpubalance.errors import EnvironmentFault
from gpubalance.remedies import known_error


@kept_with_replicas
def check_sum(replicas: Replicas) -> None:
    """Raises EnvironmentFault unless each device gets the sum of all devices' numbers.

    Each device gives a vector, float32 [replicas], with 1 in its own place and 0 elsewhere, so the
    sum is 1 everywhere, and a wrong one shows whose numbers are lost. In a cluster all processes
    must call this together. The same replicas are checked once.
    """
    shape = (replicas.count, replicas.count)

    # The numbers are an argument: constants would be summed while the function is made.
    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32)], autograph=False)
    def summed(numbers: Any) -> Any:
        return replicas.strategy.run(_sum_of_own, (numbers,))

    sums = replicas.strategy.experimental_local_results(summed(tf.eye(replicas.count)))
    is_right = np.all([total.numpy() == 1 for total in sums], axis=0)
    if not is_right.all():
        lost = []
        for label, right in zip(replicas.labels, is_right, strict=True):
            if not right:
                lost.append(label)
        known = known_error("wrong-sum")
        raise EnvironmentFault(
            f"the all-reduce {replicas.summing.all_reduce} gives a wrong sum: the numbers of "
            f"{', '.join(lost)} do not arrive on each device as they are",
            cause=known.cause,
            remedy=known.remedy,
        )


def _sum_of_own(numbers: Any) -> Any:
    """A replica's sum over all replicas, by the step's own all-reduce."""
    own = numbers[number_of_replica()]
    (total,) = over_replicas([own])
    return total
