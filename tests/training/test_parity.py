"""The parity check tells rounding from what is no mean, by the size of what was summed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.cases import cases, full
from tests.support.late import keras, ops, tf
from tests.support.python import python
from tests.training.drawn import judged
from tests.training.models import classifier, compiled, dense
from tests.training.test_told import X, Y

_A_TEST = 5
_FULL = [full(first) for first in (5, 10)]


def moved_by_rounding(model: Any) -> Any:
    """How far perturbed terms move the gradients of a step, as fractions of them."""
    from gpubalance.engine.step import built
    from gpubalance.engine.step.sums import norms, products
    from gpubalance.engine.step.traced_step import TracedStep

    batch = tf.constant(X[:100]), tf.constant(Y[:100])
    built.build(model, tf.distribute.get_strategy(), batch, trains=True)
    step = TracedStep(model, batch, "CPU:0", 16, trains=True)
    whole = step.run(step.states()).sketches["gradient"]
    moved = []
    for seed in range(5):
        sketches = step.run(step.states(), seed=seed).sketches["gradient"]
        moved.append(np.abs(products(sketches - whole)).max(axis=-1) / norms(whole))
    return np.median(moved, axis=0)


def test_only_gradients_that_cancel_are_as_large_as_their_rounding() -> None:
    keras.utils.set_random_seed(1)
    of_all_classes = compiled(dense(), lambda _, p: ops.mean(p, axis=-1))
    assert np.all(moved_by_rounding(of_all_classes) > 0.1)
    assert np.all(moved_by_rounding(classifier()()) < 1e-5)


def test_sums_in_half_precision_are_taken_in_float32() -> None:
    """TensorFlow's kernels for CPUs add 4,096 equal terms up to 0.1 and 0.8 of their sum."""
    from gpubalance.engine.step.rounding import with_half_sums_in_float32

    of_axis = tf.function(lambda values: tf.reduce_sum(values, axis=0))

    def sums(weight: Any) -> Any:
        of_bias = tf.fill((64, 8, 8, 2), tf.cast(weight, "bfloat16"))
        terms = tf.fill((4096, 2), tf.cast(weight, "float16"))
        of_bias = tf.raw_ops.BiasAddGrad(out_backprop=of_bias)
        return [of_bias, of_axis(terms), tf.reduce_mean(terms, axis=0)]

    function = tf.compat.v1.wrap_function(sums, [tf.TensorSpec(())])
    found = with_half_sums_in_float32(function)(tf.constant(0.01))
    terms = [float(tf.cast(0.01, dtype)) for dtype in ("bfloat16", "float16")]
    expected = [4096 * terms[0], 4096 * terms[1], terms[1]]
    assert [value.dtype.name for value in found] == ["bfloat16", "float16", "float16"]
    for value, sum_ in zip(found, expected, strict=True):
        assert np.allclose(tf.cast(value, "float32"), sum_, rtol=2**-8)


def test_without_sums_in_half_precision_a_step_stays_as_it_is() -> None:
    from gpubalance.engine.step.rounding import with_half_sums_in_float32

    function = tf.compat.v1.wrap_function(tf.reduce_sum, [tf.TensorSpec((3,))])
    assert with_half_sums_in_float32(function) is function


@cases("first", 0, *_FULL)
def test_of_drawn_models_what_is_said_is_true(first: int) -> None:
    """A small part of `scripts/bench parity`."""
    found = [judged(seed) for seed in range(first, first + _A_TEST)]
    assert [text for kind, text in found if kind not in ("right", "undecided")] == []
    assert [kind for kind, _ in found].count("right") >= _A_TEST / 2


@pytest.mark.full
def test_a_variance_in_half_precision_is_called_no_sum() -> None:
    """Its gradients look like those of a sum there, but its loss does not."""
    script = "from tests.training.drawn import judged; print(judged(7001273))"
    done = python("-c", script, env={"TF_ENABLE_ONEDNN_OPTS": "0"})
    assert "('right', " in done.stdout, done.stdout + done.stderr
