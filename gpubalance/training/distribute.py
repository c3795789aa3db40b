"""An existing model, copied onto several devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpubalance.errors import BadInput
from gpubalance.training.split import Split


def distribute(
    model: Any,
    gpus: Sequence[int | str] | None = None,
    ratios: Sequence[int] = (),
    *,
    simulate: int | str | Path | None = None,
) -> Any:
    """Copies a Keras model. The copy's `fit`, `evaluate` and `predict` divide each batch over GPUs by `ratios`.

    `distribute(model, gpus=[0, 1], ratios=[4, 3]).fit(x, y, batch_size=1000)` trains with 571 and 429 samples a step,
    and gives what one device with 1000 gives. Weights, the compiled loss, metrics and optimizer with its state are
    copied. `copy.split` is the split, for its `monitor()`; `copy.compile` compiles it again.

    Raises BadInput for a model that `keras.models.clone_model` can't copy, and whatever `Split` raises.
    """
    import keras

    split = Split.by_ratios(gpus, ratios, simulate=simulate)
    with split.scope():
        try:
            copy = keras.models.clone_model(model)
        except (NotImplementedError, TypeError, ValueError) as error:
            raise BadInput(
                f"Keras can't copy the model {model.name}: {error}", remedy="build it in split.scope() instead"
            ) from error
        copy.set_weights(model.get_weights())
        if model.compiled:
            copy.compile_from_config(model.get_compile_config())
            _copy_optimizer(model, copy)
    for name in ("fit", "evaluate", "predict"):
        setattr(copy, name, partial(getattr(split, name), copy))
    copy.compile = partial(_compile, split, copy)
    copy.split = split
    return copy


def _compile(split: Split, model: Any, *arguments: Any, **options: Any) -> None:
    with split.scope():
        type(model).compile(model, *arguments, **options)


def _copy_optimizer(model: Any, copy: Any) -> None:
    if model.optimizer.built:
        copy.optimizer.build(copy.trainable_variables)
        for own, other in zip(copy.optimizer.variables, model.optimizer.variables, strict=True):
            own.assign(other)
