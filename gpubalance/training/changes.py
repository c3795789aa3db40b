"""What a step assigns to variables without an optimizer, and what the new values are computed from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from gpubalance.engine.sources import maker, sources
from gpubalance.training.part import Change, current, replaced


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
def unchanged(model: Any) -> Iterator[None]:
    """Drops what is assigned to Keras variables inside the block, also to the counters and seeds of a model.

    Keras would drop what layers add to the loss there, too, if the scope did not collect it.
    """
    with keras.StatelessScope(collect_losses=True) as scope:
        for variable in model.trainable_variables:
            if variable.regularizer is not None:  # Keras takes such a weight from the scope alone
                scope.add_update((variable, variable.value))
        yield


def is_keras_own(thing: Any) -> bool:
    """Whether a function, or the class of a layer, metric or loss, comes with Keras, so that its rules are known."""
    of = thing if hasattr(thing, "__name__") else type(thing)
    return str(getattr(of, "__module__", "")).startswith("keras.")


def has_no_call(model: Any) -> bool:
    """Whether a model can't be called, only its layers, as its own `train_step` does."""
    return type(model).call is keras.Model.call


def handles(variables: Iterable[Any]) -> set[int]:
    """The ids of the variables' handles, on every device."""
    values = [variable.value for variable in variables]
    return {id(local.handle) for value in values for local in getattr(value, "values", (value,))}


def adds(value: Any) -> bool:
    """Whether a variable's new value is its old one plus or minus something that it does not itself decide.

    So `assign_add` by a sum over samples adds, by hand too; a moving average, `v + 0.1 * (x - v)`, does not.
    """
    parts = addition(value)
    return parts is not None and not sources(parts[0]) & sources(parts[1])


def addition(value: Any) -> tuple[Any, Any] | None:
    """A variable's old value and what a new `value` adds to it, or subtracts from it; None if it does neither."""
    op = maker(value)
    if op is None or op.type not in ("Add", "AddV2", "Sub"):
        return None
    one, other = op.inputs
    if _is_read(one):
        return one, other
    return (other, one) if _is_read(other) and op.type != "Sub" else None


def _is_read(tensor: Any) -> bool:
    op = maker(tensor)
    return op is not None and op.type == "ReadVariableOp"
