"""Makes what the settings ask for: the model, its optimizer, its samples and its loss."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine.data import Samples
from gpubalance.engine.losses import CompiledLoss, Loss, fit_labels, fit_loss
from gpubalance.engine.models import build_model, find_model, input_shapes
from gpubalance.engine.user_data import UserData
from gpubalance.errors import BadInput
from gpubalance.settings.requests import Settings


def make_model(settings: Settings) -> tuple[Any, float]:
    """The model, and the seconds that importing a user's own file took. Call it in the scope for its variables."""
    began = time.monotonic()
    make = find_model(settings.model)
    import_s = time.monotonic() - began
    return build_model(settings.model, make, known_shapes=settings.data is None), import_s


def optimizer_of(model: Any, precision: str) -> Any:
    """Adam, or the optimizer that the user's model was compiled with: memory and update time depend on it."""
    optimizer = getattr(model, "optimizer", None) or keras.optimizers.Adam()
    if precision == "mixed_float16" and not hasattr(optimizer, "inner_optimizer"):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def samples_and_loss(
    settings: Settings, model: Any, user_data: UserData | None, *, seed: int
) -> tuple[Samples | UserData, Loss | CompiledLoss]:
    """Random samples and a loss that suits the model; or the user's samples and a loss that suits their labels."""
    where = "model"
    try:
        if user_data is None:
            loss = fit_loss(model)
            return Samples(model, loss, seed=seed), loss
        where = "data"
        return user_data, fit_labels(model, user_data.make(1)[1])
    except ValueError as error:
        raise BadInput(f"--{where} {getattr(settings, where)}: {error}") from None


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
