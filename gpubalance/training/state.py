"""What layers keep from step to step, and no gradient changes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def kept_by_each(model: Any) -> list[Any]:
    """Variables that no gradient changes and that each replica keeps by itself, such as moving averages."""
    found = [variable for layer in model._flatten_layers() for variable in layer._non_trainable_variables]
    return [variable for variable in found if tf.as_dtype(variable.dtype).is_floating]
