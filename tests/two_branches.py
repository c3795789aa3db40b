"""Two branches of two layers over one input, and a merge: small enough to be built and traced at once."""

from __future__ import annotations

from typing import Any

import keras


def net() -> Any:
    inputs = keras.Input((8,))
    arms = []
    for arm in "ab":
        x = inputs
        for number in range(2):
            x = keras.layers.Dense(4, name=f"{arm}{number}")(x)
        arms.append(x)
    merged = keras.layers.Concatenate(name="merge")(arms)
    return keras.Model(inputs, keras.layers.Dense(3, activation="softmax", name="head")(merged))
