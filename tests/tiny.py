"""A model for where it does not matter which: its step is traced in a fifth of the time that `small` takes."""

from __future__ import annotations

from typing import Any


def net() -> Any:
    """36 weights."""
    import keras

    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)], name="tiny")
