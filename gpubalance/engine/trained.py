"""Makes a model ready to be trained: compiled, with samples that fit it."""

from __future__ import annotations

from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine.data import Samples
from gpubalance.engine.keras_inside import graph_of
from gpubalance.engine.labels import Target, compile_for, random_targets
from gpubalance.engine.models import input_shapes
from gpubalance.engine.step import built, parity
from gpubalance.engine.step.own import is_keras_own
from gpubalance.engine.user_data import UserData
from gpubalance.errors import BadInput, GpubalanceError
from gpubalance.settings.requests import Settings
from gpubalance.text import clean

Source: TypeAlias = Samples | UserData


def samples_for(
    settings: Settings, model: Any, strategy: Any, device: str, *, seed: int, takes_data: bool = True
) -> Source:
    """The user's samples, or random ones that suit the model, which is compiled for them if it is not yet.

    Raises BadInput if none suit.
    """
    try:
        if settings.data is None:
            return _random_samples(model, strategy, device, seed=seed)
        with strategy.scope():
            source = UserData(settings.data, model)
            if not model.compiled:
                _, labels, *_ = source.make(1)
                compile_for(model, labels)
    except ValueError as error:
        if settings.data:
            raise BadInput(f"--data {settings.data}: {error}") from None
        remedy = "give samples of your own: --data FILE.py:FUNCTION" if takes_data else ""
        raise BadInput(f"--model {settings.model}: {error}", remedy=remedy) from None
    return source


def build(settings: Settings, model: Any, strategy: Any, batch: Any) -> None:
    """Creates all variables that training needs. Raises BadInput, in Keras' words, for samples that do not fit."""
    try:
        built.build(model, strategy, batch, trains=True)
    except Exception as error:
        is_usual = graph_of(model) is not None and is_keras_own(type(model).train_step)
        if settings.data is None or not is_usual or isinstance(error, GpubalanceError):
            raise
        told = " ".join(str(error).partition("Arguments received by")[0].split())
        raise BadInput(
            f"--data {settings.data} does not fit the model and its loss: {clean(told, 300)}",
            remedy="give x and y as the model's fit takes them",
        ) from None


def _random_samples(model: Any, strategy: Any, device: str, *, seed: int) -> Samples:
    if not model.compiled:
        with strategy.scope():
            return Samples(model, compile_for(model), seed=seed)

    def suits(targets: list[Target]) -> bool:
        return parity.can_run(model, Samples(model, targets, seed=seed).make(2), strategy, device)

    return Samples(model, random_targets(model, suits), seed=seed)


def facts_of(model: Any) -> dict[str, Any]:
    """What a result records about the model and TensorFlow. `gradient_bytes` is what an all-reduce moves."""
    variables = model.trainable_variables
    sizes = [int(np.prod(v.shape)) for v in variables]
    build = tf.sysconfig.get_build_info()
    return {
        "model": {
            "name": str(model.name),
            "parameters": sum(sizes),
            "gradient_bytes": sum(n * tf.as_dtype(v.dtype).size for n, v in zip(sizes, variables, strict=True)),
            "input_shapes": input_shapes(model),
        },
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
    }
