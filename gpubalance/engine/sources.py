"""What a tensor of a step's graph is computed from."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

SAMPLES = "samples"


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


def has_fixed_rows(grad: Any) -> bool:
    """Whether a gradient has the same rows for each part of a batch, as an embedding's of positions; not of words.

    One device gets such a row once, summed over all samples, but a row for each occurrence of a word. Optimizers square
    and clip each row that they get.
    """
    return isinstance(grad, tf.IndexedSlices) and SAMPLES not in sources(grad.indices)
