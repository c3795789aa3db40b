"""Small models that have what makes a graph hard to cut, one thing each."""

from __future__ import annotations

from typing import Any

from tests.support.late import keras, layers, ops


def regularised() -> Any:
    """Weights and activations that add to the loss, and two layers that keep states.

    Those layers are batch normalisation and dropout.
    """
    decay = keras.regularizers.L2(1e-2)
    held = {"kernel_constraint": keras.constraints.MaxNorm(0.8)}
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "relu", kernel_regularizer=decay),
            layers.BatchNormalization(),
            layers.Dropout(0.3, seed=1),
            layers.Dense(8, "relu", activity_regularizer=decay, **held),
            layers.Dropout(0.3, seed=2),
            layers.Dense(3, "softmax", dtype="float32"),
        ]
    )


def masked() -> Any:
    """A mask beside the tensors, and an embedding, whose gradients are rows.

    One of the outputs is a tensor whose loss goes by the mask.
    """
    given = keras.Input((5,), dtype="int32")
    body = layers.Dropout(0.2, seed=3)(layers.Embedding(20, 6, mask_zero=True)(given))
    each = layers.Dense(4, "softmax")(body)
    return keras.Model(given, [each, layers.Dense(3, "softmax")(layers.LSTM(4)(body))])


def nested() -> Any:
    """Models in a model, and an operation that is no layer.

    One of the inner models is called with training=False.
    """
    body = [keras.Input((6,)), layers.Dense(8, "relu"), layers.BatchNormalization()]
    base = keras.Sequential(body, name="base")
    last = [layers.Dropout(0.5, seed=4), layers.Dense(3, "softmax")]
    head = keras.Sequential([keras.Input((16,)), *last], name="head")
    given = keras.Input((6,))
    body = base(given, training=False)
    return keras.Model(given, head(ops.concatenate([body, body * 2.0], -1)))


def several() -> Any:
    """Two inputs and two outputs, by name.

    One output is made early, and a tensor skips some layers.
    """
    left = keras.Input((6,), name="left")
    right = keras.Input((4,), name="right")
    first = layers.Dense(8, "relu")(left)
    aux = layers.Dense(1, "sigmoid", name="aux")(first)
    both = layers.Concatenate()([first, layers.Dense(4, "tanh")(right)])
    second = layers.Dense(8, "relu")(both)
    main = layers.Dense(3, "softmax", name="main")(layers.Add()([first, second]))
    return keras.Model({"left": left, "right": right}, {"aux": aux, "main": main})


def shared() -> Any:
    """A layer that is called twice: between its calls no cut is possible."""
    again = layers.Dense(6, "tanh", name="again")
    given = keras.Input((6,))
    between = layers.Dense(6, "relu")(again(given))
    after = layers.Dense(5, "relu")(again(between))
    return keras.Model(given, layers.Dense(3, "softmax")(after))


def stopped() -> Any:
    """A tensor that no gradient comes back for, and so none for what made it."""
    given = keras.Input((6,))
    first = layers.Dense(8, "relu")(given)
    body = layers.Dense(8, "tanh")(layers.Dense(8)(first))
    side = ops.stop_gradient(layers.Dense(8)(layers.Dense(8)(first)))
    both = layers.Concatenate()([body, side])
    return keras.Model(given, layers.Dense(3, "softmax")(both))


def branches() -> Any:
    """Two arms that need nothing of each other before they meet."""
    inputs = [keras.Input((6,), name=name) for name in ("a", "b")]
    arms = [layers.Dense(8, "relu")(layers.Dense(8, "relu")(one)) for one in inputs]
    return keras.Model(inputs, layers.Dense(3, "softmax")(layers.Concatenate()(arms)))
