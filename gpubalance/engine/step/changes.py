"""What a step assigns to variables without an optimizer, and whose code is Keras' own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from gpubalance.engine.step.part import Change, current, replaced


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Records in each part of a batch which Keras variables its step changes."""
    assign = keras.Variable.assign

    def noted(variable: Any, value: Any) -> Any:
        part = current.part
        if part is None:
            return assign(variable, value)
        part.changes.append(Change(variable, value, late=bool(part.taken)))
        with replaced(part, assigns=True):
            return assign(variable, value)

    with replaced(keras.Variable, assign=noted):
        yield


@contextlib.contextmanager
def unchanged(model: Any, values: Iterable[tuple[Any, Any]] = ()) -> Iterator[Any]:
    """Drops what is assigned to Keras variables inside the block, also to the counters and seeds of a model.

    Inside it variables have these `values`, if given; the scope that it yields has what was assigned.
    """
    # Keras would drop what layers add to the loss, too, if the scope did not collect it.
    with keras.StatelessScope(list(values), collect_losses=True) as scope:
        for variable in model.trainable_variables:
            if variable.regularizer is not None:  # Keras takes such a weight from the scope alone
                scope.add_update((variable, variable.value))
        yield scope


def is_keras_own(thing: Any) -> bool:
    """Whether a function, or the class of a layer, metric or loss, comes with Keras."""
    of = thing if hasattr(thing, "__name__") else type(thing)
    return str(getattr(of, "__module__", "")).startswith("keras.")


def has_no_call(model: Any) -> bool:
    """Whether a model can't be called, only its layers, as its own `train_step` does."""
    return type(model).call is keras.Model.call


def handles(variables: Iterable[Any]) -> set[int]:
    """The ids of the variables' handles, on every device."""
    values = [variable._value for variable in variables]  # their `value` may be one that a scope has for them
    return {id(local.handle) for value in values for local in getattr(value, "values", (value,))}
