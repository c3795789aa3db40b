"""What a step assigns to variables without an optimizer, and what the new values are computed from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from gpubalance.training.part import Change, current, replaced

SAMPLES = "samples"


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Records in each part of a batch which Keras variables its step changes."""
    assign = keras.Variable.assign

    def noted(variable: Any, value: Any) -> Any:
        if current.part is not None:
            current.part.changes.append(Change(variable, value, late=bool(current.part.taken)))
        return assign(variable, value)

    with replaced(keras.Variable, assign=noted):
        yield


def is_keras_own(thing: Any) -> bool:
    """Whether a function, or the class of a layer, metric or loss, comes with Keras, so that its rules are known."""
    of = thing if hasattr(thing, "__name__") else type(thing)
    return str(getattr(of, "__module__", "")).startswith("keras.")


def sources(value: Any) -> set[Any]:
    """What a value is computed from: SAMPLES for the step's input, and the id of each variable's handle.

    A value that is not a tensor of a graph has only its own id, as nothing is known about it.
    """
    found: set[Any] = set()
    todo, seen = [value], set()
    while todo:
        tensor = todo.pop()
        if not tf.is_symbolic_tensor(tensor):
            found.add(id(tensor))
        elif tensor.op not in seen:
            seen.add(tensor.op)
            todo += tensor.op.inputs
            if tensor.op.type == "Placeholder":
                outside = [outer for outer, inner in tensor.graph.captures if inner is tensor]
                todo += outside
                found |= set() if outside else {SAMPLES}
    return found


def adds(value: Any) -> bool:
    """Whether a variable's new value is its old one plus or minus something: `assign_add`, or the same by hand."""
    op = _maker(value)
    return op is not None and op.type in ("Add", "AddV2", "Sub") and any(_is_read(tensor) for tensor in op.inputs)


def _is_read(tensor: Any) -> bool:
    op = _maker(tensor)
    return op is not None and op.type == "ReadVariableOp"


def _maker(tensor: Any) -> Any:
    """The operation that made a tensor, behind casts and identities; None for what is not a tensor of a graph."""
    op = tensor.op if tf.is_symbolic_tensor(tensor) else None
    while op is not None and op.type in ("Cast", "Identity"):
        op = op.inputs[0].op
    return op
