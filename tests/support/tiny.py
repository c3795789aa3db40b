"""A model for tests that need any: its step is traced in a fifth of the time of `small`."""

from __future__ import annotations

from typing import Any


def net() -> Any:
    """A model of 36 weights."""
    import keras

    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)], name="tiny")
