"""An existing model, copied onto several devices."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpubalance.errors import BadInput
from gpubalance.training.device_split import Gpus, Simulate
from gpubalance.training.keras_functions import check_model
from gpubalance.training.split import Split


def distribute(
    model: Any,
    gpus: Gpus = None,
    ratios: Sequence[int] = (),
    *,
    simulate: Simulate = None,
    time_scale: float = 1.0,
) -> Any:
    """Copies a Keras model, so that the copy trains and predicts over GPUs by `ratios`.

    Its `fit`, `evaluate` and `predict` divide each batch so: `distribute(model, gpus=[0, 1],
    ratios=[4, 3]).fit(x, y, batch_size=1000)` trains with 571 and 429 samples a step, and gives
    what one device with 1000 gives. What `model.save` saves and the compiled loss, metrics and
    optimizer with its state are copied. `copy.split` is the split, for its `monitor()`;
    `copy.compile` compiles it again.

    Raises BadInput for a model that Keras can't save and load, and whatever `Split` raises. A model
    whose `compile` is its own is copied as not compiled.
    """
    check_model(model, "gpubalance.distribute(model, ratios=[4, 3])")
    split = Split(gpus, ratios=ratios, simulate=simulate, time_scale=time_scale)
    copy = copied(model, split.scope())
    copy.compile = partial(_compile, split, copy)
    copy.split = split
    return copy


def _compile(split: Split, model: Any, *arguments: Any, **options: Any) -> None:
    with split.scope():
        type(model).compile(model, *arguments, **options)


def copied(model: Any, scope: Any, *, compiled: bool = True) -> Any:
    """A copy made in the scope, compiled like the model or not.

    By a file: a scope can't read another's variables, and layers have other state too.
    """
    import keras

    layers = model._flatten_layers()
    kinds = {type(layer).__name__: type(layer) for layer in layers}
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            # About what the file lacks: `compile_it` has it
            warnings.simplefilter("ignore")
            file = str(Path(folder) / "model.keras")
            model.save(file)
            compile_it = _compiled(model) if compiled else None
            with scope:
                copy = keras.models.load_model(file, kinds, compile=False)
                if compile_it is not None:
                    compile_it(copy)
    # What Keras' code or the user's `get_config` raises for a model that can't be saved.
    except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
        why = _reason(error)
        remedy = "build it in split.scope() instead"
        has_weights = all(layer.built for layer in layers)
        if "could not be loaded" in str(error) and not has_weights:
            why = "its layers have no weights before its first batch"
            remedy = f"call it once first, model(x[:1]), or {remedy}"
        raise BadInput(
            f"Keras can't copy the model {model.name}: {why}", remedy=remedy
        ) from error
    return copy


def _reason(error: BaseException) -> str:
    """The first sentence of the original error: Keras raises another, with all layers' settings."""
    before = error.__cause__ or error.__context__
    return _reason(before) if before else str(error).split(". ")[0]


def _compiled(model: Any) -> Callable[[Any], None] | None:
    """A function that compiles a copy like the model; None if Keras did not compile it.

    The copy has the same loss objects, which have no variables.
    """
    import keras

    if not model.compiled or type(model).compile is not keras.Model.compile:
        return None
    optimizer = model.optimizer
    arguments = {**model._compile_config.config, "optimizer": optimizer}
    makers = keras.tree.map_structure(_maker, arguments)
    state = [variable.numpy() for variable in optimizer.variables]

    def compile_it(copy: Any) -> None:
        copy.compile(**keras.tree.map_structure(lambda make: make(), makers))
        if optimizer.built:
            copy.optimizer.build(copy.trainable_variables)
            for variable, value in zip(copy.optimizer.variables, state, strict=True):
                variable.assign(value)

    return compile_it


def _maker(argument: Any) -> Callable[[], Any]:
    """A function that makes an optimizer or metric anew, as its variables belong to one strategy.

    Of other arguments it returns what is there.
    """
    import keras

    if isinstance(argument, keras.Optimizer | keras.Metric):
        return partial(type(argument).from_config, argument.get_config())
    return lambda: argument
