"""The noise of devices: each draws its own, whatever their number, and the first one Keras'."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tests.support.late import keras, tf

REPLICAS = 5


def dropping() -> Any:
    return keras.Sequential([keras.Input((128,)), keras.layers.Dropout(0.5, seed=3)])


def drawn_on_each(model: Any, strategy: Any, x: Any) -> list[Any]:
    """The model's outputs on each replica of a step in parts."""
    from gpubalance.engine.step.part import part_of
    from gpubalance.engine.step.weighing import weighing

    def on_replica() -> Any:
        with part_of(1.0 / REPLICAS, weighing(model)):
            return model(x, training=True)

    traced = tf.function(lambda: strategy.run(on_replica), autograph=False)
    outputs = strategy.experimental_local_results(traced())
    return [output.numpy() for output in outputs]


def test_no_two_devices_drop_the_same_and_the_first_drops_what_keras_does() -> None:
    names = [f"CPU:{number}" for number in range(REPLICAS)]
    from gpubalance.engine.replicas import build_strategy

    strategy = build_strategy(tuple(names), "auto")
    x = np.ones((1, 128), np.float32)
    with strategy.scope():
        models = dropping(), dropping()
    noise, again = (drawn_on_each(model, strategy, x) for model in models)
    assert np.array_equal(noise, again)  # by the seed
    for one, other in itertools.combinations(noise, 2):
        same = np.mean(one == other)
        assert 0.25 < same < 0.75, same
    assert (noise[0] == dropping()(x, training=True).numpy()).all()
