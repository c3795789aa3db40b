"""What layers over several devices can't train, told before anything is measured."""

from __future__ import annotations

from typing import Any

import keras

from gpubalance.errors import Refused
from gpubalance.settings.requests import Settings
from gpubalance.system.versions import numbers


def settings(given: Settings) -> None:
    """Raises Refused for XLA: it compiles a step as a whole, for one device."""
    if given.xla:
        raise Refused("layers train without XLA, which compiles a step for one device", remedy="leave out --xla")


def model(given: Any) -> None:
    """Raises Refused for a model with a step or a loss of its own, or of layers that micro-batches change."""
    for name in ("train_step", "test_step", "predict_step", "compute_loss"):
        if getattr(type(given), name) is not getattr(keras.Model, name):
            raise Refused(
                f"the model {given.name} has a {name} of its own, which runs all of its layers at once",
                remedy="layers train what a model was compiled with: compile(optimizer, loss)",
            )
    for layer in given._flatten_layers():
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise Refused(
                f"the layer {layer.name} is stateful: it keeps a state for each sample of a batch, of which a "
                "micro-batch is a part",
                remedy="stateful=False",
            )
        if numbers(keras.__version__) < (3, 14) and getattr(layer, "activity_regularizer", None):
            raise Refused(
                f"the layer {layer.name} has an activity regulariser, of which Keras {keras.__version__} takes the sum "
                "over a batch and not the mean",
                remedy="pip install 'keras>=3.14'",
            )
