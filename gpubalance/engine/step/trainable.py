"""Which layers and weights of a model are trained, as they were when a step was first traced.

Keras traces a step once, so what a callback freezes afterwards trains on until the model is
compiled again. Here a step has several kinds, some of which are traced much later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Each layer or variable, and whether it is trained
_Flags = list[tuple[Any, bool]]


class TrainableState:
    """A model's layers and variables that are trained at this moment."""

    def __init__(self, model: Any) -> None:
        self._layers: _Flags = []
        self._variables: _Flags = []
        for layer in model._flatten_layers():
            self._layers.append((layer, layer.trainable))
            for variable in layer._trainable_variables + layer._non_trainable_variables:
                self._variables.append((variable, variable.trainable))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Inside the block just these are trained; a layer that is new stays as it is."""
        layers = [(layer, layer.trainable) for layer, _ in self._layers]
        variables = [(variable, variable.trainable) for variable, _ in self._variables]
        _set(self._layers, self._variables)
        try:
            yield
        finally:
            _set(layers, variables)


def _set(layers: _Flags, variables: _Flags) -> None:
    for layer, is_trained in layers:
        # Its setter would change all that is inside it too.
        if layer.trainable is not is_trained:
            layer._trainable = is_trained
    for variable, is_trained in variables:
        if variable.trainable is not is_trained:
            variable.trainable = is_trained
