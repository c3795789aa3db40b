"""The layers that work on each device's own samples, or draw numbers there."""

from __future__ import annotations

from collections import Counter
from typing import Any

import keras

from gpubalance.engine.keras_patches import losses_of, name_of
from gpubalance.results.common import LocalLayers


def local_layers_of(model: Any) -> LocalLayers:
    """Which they are in a model."""
    drawing = filter(_draws, model._flatten_layers())
    random = Counter(type(layer).__name__ for layer in drawing)
    return LocalLayers(
        batch_normalizations=len(_unsynchronised(model)),
        random=tuple(sorted(random.items())),
    )


def unsynchronised_text(model: Any, *, micro: bool, xla: bool) -> str:
    """The warning about batch normalisation by each device's own samples; else empty.

    A step in `micro`-batches or with `xla` can't synchronise it.
    """
    names = [layer.name for layer in _unsynchronised(model)]
    if not names:
        return ""
    which = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    steps = [name for name, on in (("micro-batches", micro), ("XLA", xla)) if on]
    without = f" without {' and '.join(steps)}" if steps else ""
    return (
        f"the model {model.name} normalises each device's own samples ({which}), so "
        "the result differs from training on one device. To get the same result, use "
        f"BatchNormalization(synchronized=True){without}"
    )


def _unsynchronised(model: Any) -> list[Any]:
    """The layers that normalise each device's own samples: a frozen one takes no samples."""
    found = []
    for layer in model._flatten_layers():
        is_normalising = isinstance(layer, keras.layers.BatchNormalization)
        if is_normalising and layer.trainable and not layer.synchronized:
            found.append(layer)
    return found


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
