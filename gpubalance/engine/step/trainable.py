"""Which layers and weights of a model are trained, as they were when a step was first traced.

Keras traces a step once, so what a callback freezes afterwards trains on until the model is
compiled again. Here a step has several kinds, some of which are traced much later.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# Where a model keeps its state: its splits' steps, and those of other threads, trace the same one.
_FIRST_TRACED = "_gpubalance_first_traced"
# Each layer or variable, and whether it is trained
_Flags = list[tuple[Any, bool]]


def compiled_objects(model: Any) -> list[Any]:
    """The objects that are replaced when the model is compiled again."""
    names = (
        "optimizer",
        "_compile_loss",
        "_compile_metrics",
        "run_eagerly",
        "jit_compile",
    )
    return [getattr(model, name, None) for name in names]


def are_the_same(objects: list[Any], others: list[Any]) -> bool:
    """Whether two of these lists are of one compilation."""
    return all(map(operator.is_, objects, others))


def as_first_traced(model: Any, what: str) -> TrainableState:
    """What the model trained when this was first called since it was compiled.

    `what` is `train`, `test` or `predict`: Keras traces each of them once, too.
    """
    by_step = _first_traced(model)
    if what not in by_step:
        by_step[what] = TrainableState(model)
    return by_step[what]


def forget_first_trace(model: Any, what: str) -> None:
    """From now on the step trains what is trainable now."""
    _first_traced(model).pop(what, None)


def _first_traced(model: Any) -> dict[str, TrainableState]:
    known: _FirstTraced | None = vars(model).get(_FIRST_TRACED)
    compiled = compiled_objects(model)
    if known is None or not are_the_same(known.compiled, compiled):
        known = vars(model)[_FIRST_TRACED] = _FirstTraced(compiled)
    return known.by_step


@dataclass
class _FirstTraced:
    compiled: list[Any]
    by_step: dict[str, TrainableState] = field(default_factory=dict)


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
