"""Some surprises show with some data only.

They are parts that fail or are not finite, samples in a row, and numbers that are 0 at first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpubalance.results.combine_rules import SUM
from tests.support.cases import cases, full
from tests.support.late import keras, layers, losses, metrics, ops
from tests.support.told import refused, warned
from tests.training.cases import in_split
from tests.training.models import compiled, dense
from tests.training.samples import numbers
from tests.training.told import checked, keeping, with_loss


def unexplained(y: Any, p: Any) -> Any:
    """The part of the labels' variance that is left: of one sample that is no number."""
    return ops.sum((y - p) ** 2) / ops.sum((y - ops.mean(y)) ** 2)


def nearly_unexplained(y: Any, p: Any) -> Any:
    """The same with a small number beside the divisor.

    Of one sample it is ten million times too large.
    """
    return ops.sum((y - p) ** 2) / (ops.sum((y - ops.mean(y)) ** 2) + 1e-7)


def two_largest(y: Any, p: Any) -> Any:
    """The mean of the two largest: of one sample there are none."""
    return ops.mean(ops.top_k(ops.reshape((y - p) ** 2, (-1,)), 2)[0])


def of_one_number() -> tuple[Any, Any]:
    """Samples with a number each to find."""
    return numbers(200)[0], np.random.default_rng(1).random((200, 1), np.float32)


@cases("loss", unexplained, nearly_unexplained, two_largest)
def test_of_how_many_samples_a_loss_is_no_number_is_found(loss: Any) -> None:
    # Of two samples too this loss may be far beyond the whole's
    keras.utils.set_random_seed(1)
    found = checked(compiled([*dense()[:2], layers.Dense(1)], loss), *of_one_number())
    assert found.minimum >= 2
    assert loss.__name__ in found.warned[0]


def test_a_share_of_too_few_samples_for_the_loss_is_refused() -> None:
    """A share of too few samples for the loss is refused."""
    body = [*dense()[:2], layers.Dense(1)]
    few, model = in_split(compiled, body, two_largest, batches=(99, 1))
    with refused(
        "1 samples are too few for a part of(.|\n)*give each device at least 2"
    ):
        few.fit(model, *of_one_number(), verbose=0)


@cases("name, sizes", ("hardest", None), ("masked", (35, 15)))
def test_a_batch_too_small_for_parts_is_trained_whole(name: str, sizes: Any) -> None:
    """A batch too small for parts that need several samples is trained whole.

    Of the last four samples a device would get one: it is masked, or the loss wants two.
    """
    split, model = in_split(with_loss, name, micro_batches=sizes)
    (x, labels), at = numbers(204), np.arange(204)
    labels = np.where((name == "masked") & ((at == 7) | (at > 202)), -1, labels)
    with warned("mean"):
        split.fit(model, x, labels, shuffle=False, verbose=0)
    assert all(np.isfinite(variable.numpy()).all() for variable in model.weights)


def test_what_is_in_pairs_of_samples_in_a_row_is_told() -> None:
    def far_from_its_like(y: Any, p: Any) -> Any:
        """Cross-entropy, and the distance to the farthest sample of the same group."""
        group = ops.reshape(y, (-1,))
        apart = ops.sum((p[:, None] - p[None]) ** 2, axis=-1)
        alike = ops.cast(group[:, None] == group[None], p.dtype)
        farthest = ops.max(apart * alike, axis=1)
        return losses.sparse_categorical_crossentropy(group, p) + farthest

    model = compiled([*dense()[:2], layers.Dense(25, "softmax")], far_from_its_like)
    in_pairs = np.arange(200) // 2 % 25  # as a sampler gives them
    (warned,) = checked(model, numbers(200)[0], in_pairs).warned
    assert "not a mean over samples" in warned


def test_a_metric_that_is_0_at_first_is_put_together_as_its_count_is() -> None:
    def third_class(y: Any, p: Any) -> Any:
        return ops.mean(ops.cast(ops.reshape(y, (-1,)) == 2, "float32"))

    split, model = in_split(compiled, dense(), metrics=[third_class])
    x = numbers(200)[0]
    labels = np.repeat([0, 2], 100)
    trained = split.fit(model, x, labels, shuffle=False, verbose=0)
    assert trained.history["third_class"] == [pytest.approx(0.5)]


def test_a_metric_that_is_no_number_for_the_samples_tried_tells_nothing() -> None:
    """Of an output that is the same for all samples there is no correlation."""
    same = layers.Dense(1, kernel_initializer="zeros")
    body = [keras.Input((6,)), same]
    model = compiled(body, "mse", metrics=[metrics.PearsonCorrelation()])
    x, _ = numbers(100)
    assert checked(model, x, x[:, :1]).warned == ()


def test_a_sum_that_is_0_at_first_is_told_or_refused() -> None:
    class Far(layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(0.01 * ops.sum(ops.relu(ops.abs(x) - 3)))
            return x

    split, model = in_split(compiled, [dense()[0], Far(), *dense()[1:]])
    x = np.clip(numbers(200)[0], -2, 2)
    y = numbers(200)[1]
    x[100:] *= 4
    told = warned("adds 0 to the loss for the samples tried")
    with told, refused("adds a sum over the batch"):
        split.fit(model, x, y, shuffle=False, verbose=0)


def of_half(kind: str, policy: str) -> Any:
    """A model with a state that is the mean or the largest of the last values, of that policy."""
    first, hidden, last = dense(dtype=policy)
    return compiled([first, hidden, keeping(kind, policy), last])


@pytest.mark.full
@cases("policy", "mixed_bfloat16", "mixed_float16")
def test_rounding_to_half_is_no_surprise_of_a_layers_state(policy: str) -> None:
    x, y = numbers(100)
    for seed in range(2):
        keras.utils.set_random_seed(seed)
        assert checked(of_half("last_mean", policy), x, y).warned == ()
    (warned,) = checked(of_half("last_max", policy), x, y).warned
    assert "the layer layer_last_max updates" in warned


HALVES = ["bfloat16", full("float16")]


def counting(policy: str) -> Any:
    """A model that has counted 5000 samples, as a whole number too: in half a few more are lost."""

    class Counting(layers.Layer):
        def build(self, _: Any) -> None:
            start = keras.initializers.Constant(5000)
            for dtype in ("int32", "float32"):
                count = self.add_weight((), start, dtype, trainable=False, name=dtype)
                setattr(self, dtype, count)

        def call(self, x: Any) -> Any:
            samples = ops.shape(x)[0]
            self.int32.assign_add(samples)
            self.float32.assign_add(ops.cast(samples, "float32"))
            return x

    first, *rest = dense(dtype=policy)
    return compiled([first, Counting(dtype=policy, name="mine"), *rest])


@pytest.mark.bfloat16
def test_a_counter_in_half_precision_is_no_mean_and_told_where_it_is_lost() -> None:
    x, y = numbers(100)
    known = checked(counting("mixed_float16"), x, y)
    if any("Tensor conversion" in text for text in known.warned):
        pytest.skip("this Keras can't add to a counter in half precision")
    assert known.warned == ()
    assert sorted(known.variables.values()) == [SUM] * 4  # the loss's two, too
    (warned,) = checked(counting("mixed_bfloat16"), x, y).warned
    assert "changes float32 by no more than rounding error" in warned


@pytest.mark.parametrize("half", HALVES)
def test_a_small_sum_in_a_loss_is_found_in_half_precision_too(half: str) -> None:
    def loss(y: Any, p: Any) -> Any:
        of_each = losses.sparse_categorical_crossentropy(y, p, from_logits=True)
        return ops.mean(of_each) + 1e-3 * ops.sum(p**2)

    x, y = numbers(100)
    keras.utils.set_random_seed(2)
    body = [*dense(dtype=f"mixed_{half}")[:2], layers.Dense(3, dtype="float32")]
    found = checked(compiled(body, loss), x, y)
    assert found.warned or found.refused


@pytest.mark.parametrize("dtype", HALVES)
def test_a_loss_or_metric_of_half_precision_is_no_surprise(dtype: str) -> None:
    x, y = numbers(100)
    for seed in range(2):
        keras.utils.set_random_seed(seed)
        loss = losses.SparseCategoricalCrossentropy(dtype=dtype)
        metric = metrics.SparseCategoricalCrossentropy(dtype=dtype)
        assert checked(compiled(dense(), loss, metrics=[metric]), x, y).warned == ()
