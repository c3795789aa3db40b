"""Two branches of two layers over one input, and a merge.

They are small enough to be built and traced at once.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers


def net() -> Any:
    inputs = keras.Input((8,))
    arms = [
        layers.Dense(4, name=f"{arm}1")(layers.Dense(4, name=f"{arm}0")(inputs))
        for arm in "ab"
    ]
    merged = layers.Concatenate(name="merge")(arms)
    head = layers.Dense(3, activation="softmax", name="head")
    return keras.Model(inputs, head(merged))
