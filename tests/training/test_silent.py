"""What audits found trained inexactly in silence is told or refused now, and parts that are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpubalance.errors import BadInput
from tests.training.cases import dense, numbers, simulated


def with_loss(name: str) -> Any:
    import keras
    from keras import ops

    def losses(y: Any, p: Any) -> Any:
        return keras.losses.sparse_categorical_crossentropy(ops.reshape(y, (-1,)), p)

    def by_mean_weight(y: Any, p: Any) -> Any:
        weights = 1 + ops.cast(ops.reshape(y, (-1,)), p.dtype)
        return ops.mean(weights / ops.mean(weights) * losses(y, p))

    def balanced(y: Any, p: Any) -> Any:
        of_class = ops.one_hot(ops.cast(ops.reshape(y, (-1,)), "int32"), 3)
        weights = ops.sum(of_class / (1 + ops.sum(of_class, axis=0)), axis=1)
        return ops.mean(weights * losses(y, p))

    def hardest_quarter(y: Any, p: Any) -> Any:
        of_each = losses(y, p)
        return ops.mean(ops.top_k(of_each, ops.maximum(1, ops.shape(of_each)[0] // 4))[0])

    model = keras.Sequential(dense())
    own = {one.__name__: one for one in (by_mean_weight, balanced, hardest_quarter)}
    model.compile("sgd", own.get(name) or keras.losses.CosineSimilarity(axis=0))
    return model


@pytest.mark.parametrize("name", ["by_mean_weight", "balanced", "hardest_quarter", "CosineSimilarity"])
def test_a_loss_of_the_batch_is_told(tensorflow: Any, name: str) -> None:
    split = simulated((70, 30))
    with split.scope():
        model = with_loss(name)
    x, y = numbers(240)
    with pytest.warns(UserWarning, match="not a mean over samples|divided by a sum or a mean over the batch"):
        split.fit(model, x, np.eye(3, dtype="float32")[y] if name == "CosineSimilarity" else y, verbose=0)


def explained() -> Any:
    """A model whose loss is the part of the labels' variance that it leaves: of one sample that is no number."""
    import keras
    from keras import ops

    def unexplained(y: Any, p: Any) -> Any:
        return ops.sum((y - p) ** 2) / ops.sum((y - ops.mean(y)) ** 2)

    model = keras.Sequential([*dense()[:2], keras.layers.Dense(1)])
    model.compile("sgd", unexplained)
    return model


def test_a_share_whose_loss_is_not_finite_is_refused_and_a_larger_one_told(tensorflow: Any) -> None:
    x, y = numbers(200)[0], np.random.default_rng(1).random((200, 1), np.float32)
    for batches in ((99, 1), (70, 30)):
        split = simulated(batches)
        with split.scope():
            model = explained()
        if batches == (99, 1):
            with pytest.raises(
                BadInput, match=r"a part of 1 of a batch's samples(.|\n)*give each device at least 2 samples"
            ):
                split.fit(model, x, y, verbose=0)
        else:
            with pytest.warns(UserWarning, match="unexplained"):
                split.fit(model, x, y, verbose=0)
