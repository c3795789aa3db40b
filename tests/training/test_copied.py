"""`gpubalance.distribute`: a copy of a model that exists, which trains over devices."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

import gpubalance
from tests.support.cases import cases, full
from tests.support.late import keras, layers, losses, tf
from tests.support.told import refused
from tests.training.cases import apart, simulated
from tests.training.models import classifier, compiled, subclassed
from tests.training.samples import numbers

X, Y = numbers(240)


def of_ones_own() -> Any:
    """A model of a class and a loss that Keras does not know.

    It has a layer that has adapted to data.
    """

    class Own(keras.Sequential):
        pass

    adapted = layers.Normalization()
    adapted.adapt(5 * X + 3)
    model = Own([keras.Input((6,)), adapted, layers.Dense(3, "softmax")])
    of_each = losses.sparse_categorical_crossentropy
    return compiled(model, lambda y, p: of_each(y, p), "adam")


# The second is built in another split's scope.
IN_SCOPE = full(classifier(), (20, 50, 30), 1e-6)


@cases("make, built_for, within", (of_ones_own, None, 1e-6), IN_SCOPE)
def test_a_copy_has_all_that_the_model_learned_and_goes_on_as_it_would(
    make: Any, built_for: Any, within: float
) -> None:
    with simulated(built_for).scope() if built_for else nullcontext():
        model = make()
    options = {"shuffle": False, "verbose": 0}
    model.fit(X, Y, batch_size=100, **options)
    copy = gpubalance.distribute(model, ratios=[4, 3], simulate="2")
    assert (type(copy), copy.split.batches) == (type(model), (4, 3))
    expected = model.predict(X, verbose=0)
    assert copy.predict(X, verbose=0) == pytest.approx(expected, abs=1e-5)
    size = 100 if built_for else 32  # of ratios it may be any
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)
    for one in (model, copy):
        one.fit(X, Y, batch_size=100, epochs=2, **options)
        own = 100 if built_for else None
        one.fit(X, Y, own, validation_split=0.1, **options)
        one.fit(data, **options)
    assert apart(copy, model) < within
    how: Any = {"verbose": 0, "return_dict": True}
    loss, expected = (one.evaluate(X, Y, **how)["loss"] for one in (copy, model))
    assert loss == pytest.approx(expected, rel=5 * within)


def test_what_a_vectoriser_learned_is_copied() -> None:
    """What a vectoriser learned is copied and what Keras cannot load is refused."""
    words = layers.TextVectorization(output_sequence_length=4)
    words.adapt(["one two three", "four five"])
    model = keras.Sequential([keras.Input((), dtype="string"), words])
    copy = gpubalance.distribute(model, ratios=[4, 3], simulate="2")
    told = tf.constant(["two one", "five six", "four"])
    assert (copy.predict(told, verbose=0) == model.predict(told, verbose=0)).all()

    class Unsaved(keras.Model):
        def __init__(self) -> None:
            super().__init__()

    unexpected = r"__init__\(\) got an unexpected .* 'trainable'\n"
    with refused(f"copy the model unsaved: .*{unexpected}"):
        gpubalance.distribute(Unsaved(), ratios=[4, 3], simulate="2")

    unbuilt = subclassed()
    unbuilt.build((None, 6))
    with refused(r"its layers have no weights before(.|\n)*model\(x\[:1\]\)"):
        gpubalance.distribute(unbuilt, ratios=[4, 3], simulate="2")
