"""What audits found trained inexactly in silence is told or refused now, and parts that are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpubalance.errors import BadInput
from tests.training.cases import dense, numbers, simulated


def with_loss(name: str) -> Any:
    import keras
    import tensorflow as tf
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

    def of_chosen(y: Any, p: Any) -> Any:
        """The mean of those that are labelled, which all of the first batch are."""
        return ops.mean(tf.boolean_mask(losses(y, p), ops.reshape(y, (-1,)) >= 0))

    model = keras.Sequential(dense())
    own = {one.__name__: one for one in (by_mean_weight, balanced, hardest_quarter, of_chosen)}
    model.compile("sgd", own.get(name) or keras.losses.CosineSimilarity(axis=0))
    return model


@pytest.mark.parametrize("name", ["by_mean_weight", "balanced", "hardest_quarter", "of_chosen", "CosineSimilarity"])
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


def test_what_is_in_pairs_of_samples_in_a_row_is_told(tensorflow: Any) -> None:
    import keras
    from keras import ops

    def far_from_its_like(y: Any, p: Any) -> Any:
        """Cross-entropy, and the distance to the farthest sample of the same group."""
        group = ops.reshape(y, (-1,))
        apart = ops.sum((p[:, None] - p[None]) ** 2, axis=-1)
        alike = ops.cast(group[:, None] == group[None], p.dtype)
        return keras.losses.sparse_categorical_crossentropy(group, p) + ops.max(apart * alike, axis=1)

    split = simulated((70, 30))
    with split.scope():
        model = keras.Sequential([*dense()[:2], keras.layers.Dense(25, "softmax")])
        model.compile("sgd", far_from_its_like)
    in_pairs = np.arange(200) // 2 % 25  # as a sampler gives them
    with pytest.warns(UserWarning, match="not a mean over samples"):
        split.fit(model, numbers(200)[0], in_pairs, shuffle=False, verbose=0)


def test_a_metric_that_is_0_at_first_is_put_together_as_its_count_is(tensorflow: Any) -> None:
    import keras
    from keras import ops

    def third_class(y: Any, p: Any) -> Any:
        return ops.mean(ops.cast(ops.reshape(y, (-1,)) == 2, "float32"))

    split = simulated((70, 30))
    with split.scope():
        model = keras.Sequential(dense())
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=[third_class])
    x, labels = numbers(200)[0], np.repeat([0, 2], 100)
    logged = split.fit(model, x, labels, shuffle=False, verbose=0).history["third_class"]
    assert logged == [pytest.approx(0.5)]


def test_a_sum_that_is_0_at_first_is_told_or_refused(tensorflow: Any) -> None:
    import keras
    from keras import ops

    class Far(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            self.add_loss(0.01 * ops.sum(ops.relu(ops.abs(x) - 3)))
            return x

    split = simulated((70, 30))
    with split.scope():
        model = keras.Sequential([dense()[0], Far(), *dense()[1:]])
        model.compile("sgd", "sparse_categorical_crossentropy")
    x, y = np.clip(numbers(200)[0], -2, 2), numbers(200)[1]
    x[100:] *= 4
    with (
        pytest.warns(UserWarning, match="adds to the loss is 0 for the samples tried"),
        pytest.raises(BadInput, match="adds a sum over the batch"),
    ):
        split.fit(model, x, y, shuffle=False, verbose=0)
