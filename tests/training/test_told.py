"""What a split can't train as one device does is refused, or trained and told.

This happens when it is first met.
"""

from __future__ import annotations

import gc
import re
from typing import Any

import numpy as np
import pytest

from gpubalance.errors import BadInput
from tests.support.late import keras, layers, losses, ops
from tests.training.cases import in_split
from tests.training.models import compiled, dense
from tests.training.own_code import sampling
from tests.training.own_steps import model_with, plain, rate_before, stepping
from tests.training.samples import numbers, sentences, words
from tests.training.told import REFUSED, TOLD, adding, checked, keeping, with_loss

X, Y = numbers(240)
IN_PARTS = {"micro_batches": (20, 30)}
OF_TWO = {"batches": (2, 4)}
ANEW = [("another optimizer", IN_PARTS), ("a step's sum, with dropout", OF_TWO)]


@pytest.mark.parametrize(("name", "sizes"), [*((name, {}) for name in REFUSED), *ANEW])
def test_what_would_be_another_training_is_refused(
    name: str, sizes: dict[str, Any]
) -> None:
    make, *given, message = REFUSED[name]
    # A sum with dropout is found for most random weights
    keras.utils.set_random_seed(1)
    split, model = in_split(make, *given, **sizes)
    with pytest.raises(BadInput, match=rf"{message}(.|\n)*→"):
        split.fit(
            model,
            sentences(240)[0] if name == "a mask" else X,
            Y,
            shuffle=False,
            verbose=0,
        )


@pytest.mark.parametrize("name", TOLD)
def test_what_is_not_exact_is_told(name: str) -> None:
    make, *given, message = TOLD[name]
    # With few random weights a loss or its gradients are near a mean.
    keras.utils.set_random_seed(1)
    assert re.search(message, "\n".join(checked(make(*given), X, Y).warned))


@pytest.mark.parametrize(
    "name",
    [
        "two passes",
        "an output",
        "Dice",
        "a layer's average",
        "a layer's largest",
        "maxima",
    ],
)
def test_what_is_told_is_trained(name: str) -> None:
    make, *given, message = TOLD[name]
    keras.utils.set_random_seed(1)
    split, model = in_split(make, *given)
    with pytest.warns(UserWarning, match=message):
        split.fit(model, X, Y, shuffle=False, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 3
    for variable in model.non_trainable_variables:
        assert len({copy.numpy().tobytes() for copy in variable.value.values}) == 1


def own_loss(kind: str) -> Any:
    """A model that counts calls of its own `compute_loss`.

    Its loss is a mean, or also random, or of mixed signs.
    """

    class Own(keras.Sequential):
        def __init__(self, body: Any) -> None:
            super().__init__(body)
            self.calls = self.add_weight(
                name="calls", initializer="zeros", trainable=False
            )
            self.drop = layers.Dropout(0.5, seed=1)

        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, *_: Any, **__: Any
        ) -> Any:
            del x, y
            self.calls.assign_add(1.0)
            signs = ops.reshape(
                1.0
                - 2.0 * ops.cast(ops.arange(ops.shape(y_pred)[0]) % 2, y_pred.dtype),
                (-1, 1),
            )
            losses = {
                "mean": y_pred,
                "random": self.drop(y_pred, training=True),
                "signed": y_pred * 0 + signs,
            }[kind]
            return ops.mean(losses)

    return compiled(Own(dense()), None)


@pytest.mark.filterwarnings("error:.*not a mean over samples")
def test_trying_a_loss_leaves_no_trace_and_warns_of_no_mean() -> None:
    from gpubalance.engine.step.traced_step import TracedStep

    for kind in ("random", "signed"):
        assert "not a mean over samples" not in "".join(
            checked(own_loss(kind), X, Y).warned
        )
        # What TensorFlow keeps for it is gone too.
        assert not [one for one in gc.get_objects() if isinstance(one, TracedStep)]
    split, model = in_split(own_loss, "mean")
    split.fit(model, X, Y, epochs=2, shuffle=False, verbose=0)
    assert float(model.calls.value.numpy()) == 2 * 3  # steps, and no trial


def of_words() -> Any:
    """A model with a layer of one's own behind an embedding.

    Each batch has other rows of the embedding's gradient.
    """

    class Doubled(layers.Layer):
        def call(self, x: Any) -> Any:
            return 2 * x

    body = [
        layers.Embedding(20, 4),
        layers.Flatten(),
        Doubled(),
        layers.Dense(3, "softmax"),
    ]
    return compiled([keras.Input((5,), dtype="int32"), *body])


@pytest.mark.parametrize(
    "make",
    [
        *(lambda kind=kind: stepping(kind) for kind in ("mean", "random mean")),
        *(lambda: model_with(plain, weights="l2"), sampling, of_words),
        *(lambda: adding("only"), lambda: with_loss("by_ones", "l2")),
        *(
            lambda: keeping("sum"),
            lambda: with_loss("two_by_two"),
            lambda: model_with(rate_before),
        ),
    ],
)
def test_code_of_ones_own_that_takes_a_mean_is_trained_in_silence(make: Any) -> None:
    found = checked(make(), *(words(100) if make is of_words else (X, Y)))
    assert (found.warned, found.refused) == ((), None)


def test_of_keras_own_losses_one_by_axis_is_told() -> None:
    """Of Keras' own losses one by axis is told and Dice that is exact is not.

    Over classes that sum to 1 the divisor of Dice is the number of samples.
    """
    labels = np.eye(3, dtype="float32")[Y]
    assert checked(compiled(dense(), losses.Dice()), X, labels).warned == ()
    told = checked(compiled(dense(), losses.CosineSimilarity(axis=0)), X, labels).warned
    assert "not a mean over samples" in "".join(told)
