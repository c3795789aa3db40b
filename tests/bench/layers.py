"""How far layers over several devices are from one device, model by model; and what memory their order takes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from tests.bench import layers_graph, layers_memory
from tests.engine import zoo
from tests.engine.pipelines import cut_outputs, difference, trained

_STEPS = 5


def main() -> Iterator[str]:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    layers_memory.devices(3)
    yield (
        "largest difference from one device with the same micro-batches: of the outputs, cut before every block; of "
        f"the weights after {_STEPS} steps in 2 and 3 stages"
    )
    for make in (zoo.masked, zoo.several, zoo.shared, zoo.nested, zoo.branches, zoo.regularised):
        yield f"{make.__name__}: {_outputs(make())}, {', '.join(_weights(make))}"
    for name, make in _deep().items():
        yield f"{name}, in float64: {_in_float64(make)}"
    yield (
        "in float32, of a first step's gradients, by the norm of them all, and of weights after "
        f"{_STEPS} steps, in 3 stages; beside one device whose inputs are each the next number"
    )
    for name, make in _deep().items():
        yield f"{name}: {', '.join(_beside_itself(make))}"
    yield from layers_memory.main()
    yield from layers_graph.main()


def _deep() -> dict[str, Callable[[], Any]]:
    """Models through which a rounding error grows: in float32 one device differs from itself by more than 1e-5."""
    import keras

    options = {"weights": None, "input_shape": (64, 64, 3), "classes": 10}
    models: dict[str, Callable[[], Any]] = {"U-Net": zoo.unet, "transformer": zoo.transformer}
    for name in ("MobileNetV2", "EfficientNetB0", "DenseNet121", "ResNet50"):
        models[name] = partial(getattr(keras.applications, name), **options)
    return models


def _in_float64(make: Callable[[], Any]) -> str:
    import keras

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        return f"{_outputs(make())}, {', '.join(_weights(make))}"
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
        keras.backend.clear_session()


def _outputs(model: Any) -> str:
    import keras

    from gpubalance.engine.data import Samples
    from gpubalance.engine.losses import fit_loss
    from gpubalance.engine.pipeline.blocks import blocks_of
    from gpubalance.engine.pipeline.calls import calls_of

    calls = calls_of(model)
    starts = blocks_of(calls).starts
    inputs, _ = Samples(model, fit_loss(model), seed=0).make(2)
    expected = keras.tree.flatten(model(inputs, training=False))
    pairs = zip(cut_outputs(model, calls, starts, inputs), expected, strict=True)
    worst = max(float(np.abs(mine - its).max()) for mine, its in pairs)
    return f"{len(calls.calls)} calls in {len(starts)} blocks, outputs {worst:.1g}"


def _weights(make: Callable[[], Any]) -> Iterator[str]:
    for name, optimizer in _optimizers().items():
        found = [trained(make, optimizer, stages=stages, micro_batches=3, steps=_STEPS).weights for stages in (2, 3)]
        yield f"{name} {found[0]:.1g} and {found[1]:.1g}"


def _optimizers() -> dict[str, Callable[[], Any]]:
    import keras

    return {"Adam": keras.optimizers.Adam, "SGD clipped": partial(keras.optimizers.SGD, 0.1, global_clipnorm=0.1)}


def _beside_itself(make: Callable[[], Any]) -> Iterator[str]:
    """How far layers are from one device, and one device from itself."""
    import keras

    found = trained(make, _gradients, micro_batches=3, steps=1, move=True)
    yield f"gradients {_part(found.model, found.twin):.1g}, itself {_part(found.moved, found.twin):.1g}"
    for name, optimizer in _optimizers().items():
        found = trained(make, optimizer, micro_batches=3, steps=_STEPS, move=True)
        yield f"{name} {found.weights:.1g}, itself {difference(found.moved, found.twin):.1g}"
    keras.backend.clear_session()


def _gradients() -> Any:
    """An optimizer whose update leaves the gradients in the weights' place."""
    import keras
    import tensorflow as tf

    class Gradients(keras.optimizers.Optimizer):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            del learning_rate
            self.assign(variable, tf.convert_to_tensor(gradient))

    return Gradients(1.0)


def _part(one: Any, other: Any) -> float:
    """The norm of the difference of their weights, by that of the weights."""
    pairs = [(a.numpy(), b.numpy()) for a, b in zip(one.trainable_variables, other.trainable_variables, strict=True)]
    return math.hypot(*(np.linalg.norm(a - b) for a, b in pairs)) / math.hypot(*(np.linalg.norm(b) for _, b in pairs))
