"""The layers that work on each device's own samples, or draw numbers there."""

from __future__ import annotations

from collections import Counter
from typing import Any

import keras

from gpubalance.engine.keras_patches import losses_of, name_of
from gpubalance.results.common import LocalLayers


def local_layers_of(model: Any) -> LocalLayers:
    """Which they are in a model: a frozen BatchNormalization takes no samples, and is none."""
    batch_normalizations = 0
    random = Counter[str]()
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            batch_normalizations += layer.trainable and not layer.synchronized
        elif _draws(layer):
            random[type(layer).__name__] += 1
    return LocalLayers(
        batch_normalizations=batch_normalizations,
        random=tuple(sorted(random.items())),
    )


def compiled_text(model: Any) -> str:
    """`Adam and SparseCategoricalCrossentropy`: what a model is compiled with."""
    losses = dict.fromkeys(map(name_of, losses_of(model._compile_loss)))
    return " and ".join([type(model.optimizer).__name__, *losses])


def _draws(layer: Any) -> bool:
    """Whether a layer draws random numbers: it has a generator, and no rate of 0 for it."""
    rates = [getattr(layer, name, None) for name in ("dropout", "recurrent_dropout")]
    known = [rate for rate in rates if isinstance(rate, int | float)]
    if known and not any(known):
        return False
    values = vars(layer).values()
    return any(isinstance(value, keras.random.SeedGenerator) for value in values)
