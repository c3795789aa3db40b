"""Models that are deeper than those of tests/engine/zoo.py."""

from __future__ import annotations

from typing import Any

from tests.support.late import keras, layers


def unet(size: int = 32, filters: int = 4) -> Any:
    """Tensors that skip most of the model: at its bottom four cross."""

    def twice(body: Any, count: int) -> Any:
        for _ in range(2):
            body = layers.ReLU()(
                layers.BatchNormalization()(
                    layers.Conv2D(count, 3, padding="same")(body)
                )
            )
        return body

    given = body = keras.Input((size, size, 3))
    skipped = []
    for depth in range(4):
        body = twice(body, filters << depth)
        skipped.append(body)
        body = layers.MaxPooling2D()(body)
    body = twice(body, filters << 4)
    for depth in reversed(range(4)):
        body = layers.Conv2DTranspose(filters << depth, 2, strides=2)(body)
        body = twice(layers.Concatenate()([body, skipped[depth]]), filters << depth)
    return keras.Model(
        given, layers.Conv2D(1, 1, activation="sigmoid")(body), name="unet"
    )


def transformer(width: int = 32, depth: int = 3, length: int = 16) -> Any:
    """Attention, operations that are no layers, and an embedding."""
    given = keras.Input((length,), dtype="int32")
    body = layers.Embedding(100, width)(given)
    for _ in range(depth):
        before = layers.LayerNormalization()(body)
        body = body + layers.MultiHeadAttention(4, width // 4)(
            before, before, use_causal_mask=True
        )
        before = layers.LayerNormalization()(body)
        body = body + layers.Dense(width)(layers.Dense(4 * width, "gelu")(before))
    return keras.Model(given, layers.Dense(100, "softmax")(body), name="transformer")
