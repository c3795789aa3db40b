"""What a loss of a part is: the parts' losses, by weight, sum to the loss of the whole batch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.support.cases import cases
from tests.support.late import keras, tf
from tests.support.tiny import net

BATCHES = (5, 2, 1)
COUNT = sum(BATCHES)
REDUCTIONS = ("sum", "sum_over_batch_size", "mean_with_sample_weight")
_DRAWN = np.random.default_rng(4)
VALUES = _DRAWN.uniform(1, 5, (COUNT, 3))
WEIGHTS = _DRAWN.uniform(0.1, 2, (COUNT, 3))
MASK = np.array([3 * [1], 3 * [0], [1, 0, 0], 3 * [0], [0, 1, 0], *3 * [3 * [1]]])


def of_whole(reduction: str, *, weighted: bool, masked: bool) -> float:
    """The loss of the whole batch, as Keras documents it, by loops."""
    total = divisor = 0.0
    for place in np.ndindex(VALUES.shape):
        weight = float(WEIGHTS[place]) if weighted else 1.0
        kept = float(MASK[place]) if masked else 1.0
        total += float(VALUES[place]) * weight * kept
        divisor += kept * (weight if reduction == "mean_with_sample_weight" else 1.0)
    return total if reduction == "sum" else total / divisor


def loss_of(reduction: str) -> Any:
    """A loss of Keras' kind whose values are the outputs themselves."""

    class Outputs(keras.losses.Loss):
        def call(self, _: Any, outputs: Any) -> Any:
            return outputs

    return Outputs(reduction=reduction, dtype="float64")


def by_parts(reduction: str, *, weighted: bool, masked: bool) -> list[float]:
    """Each device's loss times its weight."""
    from gpubalance.engine.replicas import build_strategy
    from gpubalance.engine.step.part import part_of
    from gpubalance.engine.step.weighing import weighing

    loss = loss_of(reduction)
    replacements = weighing(net())
    ends = list(itertools.accumulate(BATCHES))

    def on_replica() -> Any:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        number = int(tf.get_static_value(number))
        rows = slice(ends[number] - BATCHES[number], ends[number])
        outputs = tf.constant(VALUES[rows])
        if masked:
            outputs._keras_mask = tf.constant(MASK[rows])
        weights = tf.constant(WEIGHTS[rows]) if weighted else None
        with part_of(BATCHES[number] / COUNT, replacements) as part:
            return part.weight * loss(outputs, outputs, weights)

    strategy = build_strategy(("CPU:0", "CPU:1", "CPU:2"), "auto")
    traced = tf.function(lambda: strategy.run(on_replica), autograph=False)
    return [float(one) for one in strategy.experimental_local_results(traced())]


@cases("masked", False, True, ids=["", "masked"])
@cases("weighted", False, True, ids=["", "weighted"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_parts_of_a_loss_sum_to_it(
    reduction: str, weighted: bool, masked: bool
) -> None:
    """A masked loss divides by what the mask leaves, whatever it is weighted with."""
    parts = by_parts(reduction, weighted=weighted, masked=masked)
    whole = of_whole(reduction, weighted=weighted, masked=masked)
    assert sum(parts) == pytest.approx(whole, rel=1e-6)
