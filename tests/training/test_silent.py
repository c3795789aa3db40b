"""What only some data shows: parts that fail or are not finite, samples in a row, numbers that are 0 at first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpubalance.errors import BadInput
from tests.late import keras, ops
from tests.training.cases import compiled, dense, in_split, numbers, simulated


def explained() -> Any:
    """A model whose loss is the part of the labels' variance that it leaves: of one sample that is no number."""

    def unexplained(y: Any, p: Any) -> Any:
        return ops.sum((y - p) ** 2) / ops.sum((y - ops.mean(y)) ** 2)

    return compiled([*dense()[:2], keras.layers.Dense(1)], unexplained)


def explained_as_usual() -> Any:
    """The same with a small number beside the divisor: of one sample the loss is ten million times too large."""

    def nearly_unexplained(y: Any, p: Any) -> Any:
        return ops.sum((y - p) ** 2) / (ops.sum((y - ops.mean(y)) ** 2) + 1e-7)

    return compiled([*dense()[:2], keras.layers.Dense(1)], nearly_unexplained)


def hardest() -> Any:
    """A model whose loss is the mean of the two largest: of one sample there are none."""

    def two_largest(y: Any, p: Any) -> Any:
        return ops.mean(ops.top_k(ops.reshape((y - p) ** 2, (-1,)), 2)[0])

    return compiled([*dense()[:2], keras.layers.Dense(1)], two_largest)


@pytest.mark.parametrize(
    ("make", "loss"), [(explained, "unexplained"), (explained_as_usual, "unexplained"), (hardest, "two_largest")]
)
def test_a_share_of_too_few_samples_for_the_loss_is_refused_and_a_larger_one_told(
    tensorflow: Any, make: Any, loss: str
) -> None:
    x, y = numbers(200)[0], np.random.default_rng(1).random((200, 1), np.float32)
    few, enough = simulated((99, 1)), simulated((70, 30))
    with few.scope():
        model = make()
    with pytest.raises(BadInput, match=r"a part of 1 of a batch's samples(.|\n)*give each device at least 2 samples"):
        few.fit(model, x, y, verbose=0)
    with enough.scope():
        model = make()
    with pytest.warns(UserWarning, match=loss):
        enough.fit(model, x, y, verbose=0)


def test_what_is_in_pairs_of_samples_in_a_row_is_told(tensorflow: Any) -> None:
    def far_from_its_like(y: Any, p: Any) -> Any:
        """Cross-entropy, and the distance to the farthest sample of the same group."""
        group = ops.reshape(y, (-1,))
        apart = ops.sum((p[:, None] - p[None]) ** 2, axis=-1)
        alike = ops.cast(group[:, None] == group[None], p.dtype)
        return keras.losses.sparse_categorical_crossentropy(group, p) + ops.max(apart * alike, axis=1)

    split, model = in_split(compiled, [*dense()[:2], keras.layers.Dense(25, "softmax")], far_from_its_like)
    in_pairs = np.arange(200) // 2 % 25  # as a sampler gives them
    with pytest.warns(UserWarning, match="not a mean over samples"):
        split.fit(model, numbers(200)[0], in_pairs, shuffle=False, verbose=0)


def test_a_metric_that_is_0_at_first_is_put_together_as_its_count_is(tensorflow: Any) -> None:
    def third_class(y: Any, p: Any) -> Any:
        return ops.mean(ops.cast(ops.reshape(y, (-1,)) == 2, "float32"))

    split, model = in_split(compiled, dense(), metrics=[third_class])
    x, labels = numbers(200)[0], np.repeat([0, 2], 100)
    logged = split.fit(model, x, labels, shuffle=False, verbose=0).history["third_class"]
    assert logged == [pytest.approx(0.5)]


def test_a_sum_that_is_0_at_first_is_told_or_refused(tensorflow: Any) -> None:
    class Far(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            self.add_loss(0.01 * ops.sum(ops.relu(ops.abs(x) - 3)))
            return x

    split, model = in_split(compiled, [dense()[0], Far(), *dense()[1:]])
    x, y = np.clip(numbers(200)[0], -2, 2), numbers(200)[1]
    x[100:] *= 4
    with (
        pytest.warns(UserWarning, match="adds to the loss is 0 for the samples tried"),
        pytest.raises(BadInput, match="adds a sum over the batch"),
    ):
        split.fit(model, x, y, shuffle=False, verbose=0)
