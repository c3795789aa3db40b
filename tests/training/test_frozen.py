"""A layer that is frozen without a new `compile` trains on, as in Keras, whatever is traced later."""

from __future__ import annotations

from typing import Any

from tests.support.cases import cases, full
from tests.support.late import keras
from tests.training.cases import apart, in_both, largest
from tests.training.models import classifier
from tests.training.samples import numbers

X, Y = numbers(300)
OPTIONS = {"batch_size": 100, "shuffle": False, "verbose": 0}


def make() -> Any:
    """A model whose loss tells whether its first layer is trained."""
    return classifier("adam", layers={"weights": "l2"})()


def freezing(model: Any) -> Any:
    """A callback that freezes the first layer after the first of two epochs."""

    def begin(epoch: int, _logs: Any) -> None:
        model.layers[0].trainable = epoch == 0

    return keras.callbacks.LambdaCallback(on_epoch_begin=begin)


@cases("noise", False, full(True))
def test_over_many_steps_a_frozen_layer_trains_as_in_keras(noise: bool) -> None:
    """The first stamped step is traced in the middle of them."""
    split, model, one_device = in_both(make)
    monitor = split.monitor(every=4, noise=noise)
    for trained, others in ((one_device, []), (model, [monitor])):
        trained.fit(X, Y, epochs=3, callbacks=[freezing(trained), *others], **OPTIONS)
    assert apart(model, one_device) < 1e-5
    # A test is traced for the first time: it sees the model as it is now.
    found, expected = (one.evaluate(X, Y, verbose=0) for one in (model, one_device))
    assert largest(found, expected) < 1e-5
    assert not model.layers[0].trainable
    assert not model.layers[0].kernel.trainable
