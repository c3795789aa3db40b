"""How far layers over several devices are from one device, model by model; and what memory their order takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from tests.bench import layers_memory
from tests.engine import zoo
from tests.engine.pipelines import cut_outputs, trained

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
    yield from layers_memory.main()


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
    import keras

    optimizers = {"Adam": keras.optimizers.Adam, "SGD clipped": partial(keras.optimizers.SGD, 0.1, global_clipnorm=0.1)}
    for name, optimizer in optimizers.items():
        found = [trained(make, optimizer, stages=stages, micro_batches=3, steps=_STEPS).weights for stages in (2, 3)]
        yield f"{name} {found[0]:.1g} and {found[1]:.1g}"
