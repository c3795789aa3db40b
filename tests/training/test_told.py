"""What a split can't train as one device does is refused, or trained and told.

This happens when it is first met.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.cases import full
from tests.support.late import keras, layers, losses
from tests.support.told import refused, warnings_of
from tests.training.cases import in_split
from tests.training.models import compiled, dense
from tests.training.own_code import sampling
from tests.training.own_steps import (
    another_optimizer,
    centring,
    counting,
    model_with,
    rate_before,
    stepping,
)
from tests.training.samples import numbers, sentences, words
from tests.training.told import (
    DRAWS,
    NO_MEANS,
    REFUSED,
    TOLD,
    checked,
    of_mean_and_sum,
    with_loss,
    with_losses,
)

X, Y = numbers(240)
TRAINED = {"two passes", "states"}  # what is told of them is not checked alone


LIKE_OTHERS = {"two passes", "a sampled softmax", "a layer's loss of the batch"}
LIKE_OTHERS |= {"outputs of pairs", "those that are chosen", "compute_loss"}


def full_if_like_others(names: Iterable[str]) -> list[Any]:
    return [full(name) if name in LIKE_OTHERS else name for name in names]


@pytest.mark.parametrize("name", full_if_like_others(REFUSED))
def test_what_would_be_another_training_is_refused(name: str) -> None:
    make, *given, message = REFUSED[name]
    # A sum with dropout is found for most random weights
    keras.utils.set_random_seed(1)
    x = sentences(240)[0] if name == "a mask" else X
    refused = checked(make(*given), x, Y).refused
    assert refused
    assert refused.remedy
    assert re.search(message, refused.message)


@pytest.mark.parametrize("name", full_if_like_others(sorted(TOLD.keys() - TRAINED)))
def test_what_is_not_exact_is_told(name: str) -> None:
    make, *given, messages = TOLD[name]
    # With few random weights a loss or its gradients are near a mean.
    keras.utils.set_random_seed(1)
    warned = "\n".join(checked(make(*given), X, Y).warned)
    assert [text for text in messages if not re.search(text, warned)] == []


def test_each_loss_that_is_no_mean_is_told_by_its_name() -> None:
    keras.utils.set_random_seed(1)
    given = X, [Y] * len(NO_MEANS)
    warned = "\n".join(checked(with_losses(*NO_MEANS), *given).warned)
    assert re.findall(r"\((\w+)\) is not a mean over samples", warned) == [*NO_MEANS]
    of_two = checked(with_losses("seldom", "signs"), X, [Y, Y]).warned
    assert "(seldom) is 0 for the samples tried, so gpubalance cannot" in of_two[-1]
    assert f"the loss signs {DRAWS}" in of_two[0]


def test_fit_refuses_with_the_reason_and_what_to_do() -> None:
    """Also what only a training finds: what its step makes, or a compile of one's own omits."""
    for made, message in (
        ((model_with, another_optimizer), r"with loss_scale\w*, which is not the"),
        ((stepping, "no optimizer"), "has no optimizer: its own compile method "),
        ((with_loss, "drawn"), "creates a variable in its first step, as keras.random"),
    ):
        split, model = in_split(*made, micro_batches=(20, 30))
        with refused(rf"{message}(.|\n)*→"):
            split.fit(model, X, Y, shuffle=False, verbose=0)


@pytest.mark.parametrize("name", full_if_like_others(sorted(TRAINED)))
def test_what_is_told_is_trained(name: str) -> None:
    make, *given, messages = TOLD[name]
    split, model = in_split(make, *given)
    with pytest.warns(UserWarning, match=messages[0]) as caught:
        split.fit(model, X, Y, shuffle=False, verbose=0)
    warned = "\n".join(str(one.message) for one in caught)
    assert [text for text in messages if not re.search(text, warned)] == []
    assert int(model.optimizer.iterations.numpy()) == 3
    for variable in model.non_trainable_variables:
        assert len({copy.numpy().tobytes() for copy in variable.value.values}) == 1


def test_a_count_of_micro_batches_instead_of_steps_is_told() -> None:
    """A tf.Variable that counts steps is told with micro-batches alone, and one of Keras counts."""
    split, model = in_split(centring)
    assert (
        len(warnings_of(lambda: split.fit(model, X, Y, shuffle=False, verbose=0))) == 1
    )
    split, model = in_split(centring, micro_batches=(20, 30))
    told = r"^the model centring sets centring\.steps without samples\. It is a tf\.Var"
    with pytest.warns(UserWarning, match=told):
        split.fit(model, X, Y, shuffle=False, verbose=0)
    split, model = in_split(counting, micro_batches=(20, 30))
    assert warnings_of(lambda: split.fit(model, X, Y, shuffle=False, verbose=0)) == []
    assert float(model.steps) == 3


def of_words() -> Any:
    """A model with a layer of one's own behind an embedding.

    Each batch has other rows of the embedding's gradient.
    """

    class Doubled(layers.Layer):
        def call(self, x: Any) -> Any:
            return 2 * x

    body = [layers.Embedding(20, 4), layers.Flatten(), Doubled()]
    last = layers.Dense(3, "softmax")
    return compiled([keras.Input((5,), dtype="int32"), *body, last])


def means() -> Any:
    """Models whose own code takes a mean, those that are checked in `full` alone last."""
    yield lambda: stepping("random mean")
    yield lambda: model_with(rate_before, weights="l2")
    yield from (of_words, of_mean_and_sum, lambda: with_loss("two_by_two"))
    for make in (sampling, lambda: with_loss("by_ones", "l2")):
        yield full(make)


@pytest.mark.parametrize("make", list(means()))
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


def test_of_several_processes_the_first_one_warns_and_once() -> None:
    from gpubalance.training.step_warnings import StepWarnings

    for is_first in (True, False):
        split: Any = SimpleNamespace(is_first=is_first, warned=set())
        warn = partial(StepWarnings(split, None).warn_once, "so")
        assert warnings_of(warn) == ["so"] * is_first
        assert not warnings_of(warn)
