"""The Keras internals that every step depends on, of the versions that `runtime` accepts.

One is where an optimizer sums gradients. It clips them and looks for infinities before it sums them
over the replicas, so each replica would clip its own part. Here the sum comes first, and the
optimizer must not sum again.

For a pipeline: how a model's graph runs its layers, and where a variable keeps its value. And whose
code it is: of Keras' own it is known what it makes of parts of a batch. And how a process forgets
its policy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import global_state

from gpubalance.engine.replaced import replaced
from gpubalance.errors import BadInput

mask_of = backend.get_keras_mask  # that a layer put on a tensor, or None
put_mask = backend.set_keras_mask
SUM = "_all_reduce_sum_gradients"
# Options of an optimizer that do not work under a strategy, and what to do instead.
_NOT_OVER_DEVICES = {
    "gradient_accumulation_steps": "leave it out; a plan's micro-batches do the same within a step",
    "ema_overwrite_frequency": "leave it out: the weights become their averages when the training "
    "ends",
}


def summing(optimizer: Any) -> Any:
    """The optimizer whose method SUM sums gradients: itself, or that in a LossScaleOptimizer.

    With `list` in place of that method, `apply` takes gradients that are already summed.

    Raises BadInput for an optimizer with an option that Keras does not support under a strategy.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for option, instead in _NOT_OVER_DEVICES.items():
        if getattr(inner, option, None):
            raise BadInput(
                f"the model's optimizer has {option}, which Keras can't do over several devices",
                remedy=instead,
            )
    return inner


def follow_floatx() -> None:
    """Makes the policy that of Keras' floatx again, as if no policy had been set."""
    global_state.set_global_attribute("dtype_policy", None)


def is_keras_own(thing: Any) -> bool:
    """Whether a function, or the class of a layer, metric or loss, comes with Keras."""
    named = thing if hasattr(thing, "__name__") else type(thing)
    return str(getattr(named, "__module__", "")).startswith("keras.")


def function_of(loss: Any) -> Any:
    """The function that one of Keras' losses was made of, else itself."""
    return getattr(loss, "fn", loss)


def losses_of(compiled: Any) -> list[Any]:
    """The losses that a model was compiled with, from its `_compile_loss`."""
    losses = keras.tree.flatten(getattr(compiled, "_user_loss", None))
    return [loss for loss in losses if loss is not None]


def name_of(loss: Any) -> str:
    """The name of a loss: of a user's function, or of a class."""
    if isinstance(loss, str):
        return loss
    if type(loss).__name__ == "LossFunctionWrapper":
        loss = loss.fn
    return str(getattr(loss, "__name__", type(loss).__name__))


def users_parts(model: Any) -> list[str]:
    """The names of layers and losses with user's code, and of operations that mix samples."""
    layers = model._flatten_layers()
    names = [layer.name for layer in layers if layer is not model and _is_users(layer)]
    for layer in layers:
        graph = graph_of(layer)
        if graph is not None:
            names += [
                node.operation.name
                for node in nodes_in_order(graph)
                if _mixes_samples(node)
            ]
    if type(model).compute_loss is not keras.Model.compute_loss:
        names.append("compute_loss")
    return names


def _mixes_samples(node: Any) -> bool:
    if isinstance(node.operation, keras.Layer):
        return False
    return any(tensor.shape[:1] != (None,) for tensor in node.output_tensors)


def _is_users(layer: Any) -> bool:
    parts = [layer]
    for name in ("activation", "activity_regularizer", "function"):
        parts.append(getattr(layer, name, None))
    return not all(part is None or is_keras_own(part) for part in parts)


def graph_of(operation: Any) -> Any | None:
    """The Functional that a model runs; None for a layer, and a model with a `call` of its own."""
    from keras.src.models.functional import Functional

    if (
        isinstance(operation, keras.Sequential)
        and type(operation).call is keras.Sequential.call
    ):
        return operation._functional
    if isinstance(operation, Functional) and type(operation).call is Functional.call:
        return operation
    return None


def nodes_in_order(function: Any) -> list[Any]:
    """A Functional's calls, each after its inputs, depth first: a branch is in one piece."""
    from keras.src.ops.function import _build_map

    nodes, _ = _build_map(function.inputs, function.outputs)
    return [node for node in nodes if not node.is_input]


def run_as_graph(
    operation: Any, *, training: bool, arguments: Any, values: Mapping[int, Any]
) -> list[Any]:
    """Runs one of a Functional's calls as the Functional does.

    `values` are those of the symbolic tensors, by their ids. The training flag of the whole model
    overrides one that was given when the graph was built (keras 20285).
    """
    from keras.src.models.functional import operation_fn

    args, kwargs = arguments.fill_in(values)
    outputs = operation_fn(operation, training=training)(*args, **kwargs)
    return keras.tree.flatten(outputs)  # type: ignore[no-any-return]


def inputs_of(function: Any, data: Any) -> list[Any]:
    """A Functional's flat inputs from a user's data, cast as it does, and by name from a dict."""
    return list(function._standardize_inputs(data))


def without_xla() -> contextlib.AbstractContextManager[None]:
    """Makes models compiled in the block use XLA only if asked to: on a GPU Keras' "auto" would."""
    return replaced(keras.Model, _resolve_auto_jit_compile=lambda _: False)


def move(variable: Any, device: str) -> None:
    """Moves a variable's value to a device, for all layers and optimizers that have it."""
    old = variable._value
    if old.device.endswith(f":{device}"):
        return
    with tf.device(device):
        variable._value = tf.Variable(
            old,
            dtype=old.dtype,
            trainable=old.trainable,
            name=variable.name,
            aggregation=old.aggregation,
            synchronization=old.synchronization,
        )
    variable._value._unique_id = old._unique_id  # an optimizer's key


def move_slots(optimizer: Any) -> None:
    """Moves what an optimizer keeps for each variable to where the variable is."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    variables = inner._trainable_variables
    for slots in vars(inner).values():
        if (
            isinstance(slots, list)
            and len(slots) == len(variables)
            and slots is not variables
        ):
            for slot, variable in zip(slots, variables, strict=True):
                if isinstance(slot, keras.Variable):
                    _, _, device = variable._value.device.rpartition("device:")
                    move(slot, device)


class Twin(NamedTuple):
    """An optimizer for some variables of another, and how its scalars follow the other's.

    Each pair is a Keras variable of the original, and the tf.Variable that copies it.
    """

    optimizer: Any
    scalars: list[tuple[Any, Any]]


def twin_for(optimizer: Any, variables: Sequence[Any], device: str) -> Twin:
    """An optimizer with the same slots that updates only these of its variables, on their device.

    It has copies there of what the optimizer keeps beside its slots (iterations, learning rate,
    loss scale). It does not clip by a global norm.
    """
    twin = _shallow_copy(optimizer)
    scalars: list[tuple[Any, Any]] = []
    for name, value in vars(optimizer).items():
        if isinstance(value, keras.Variable):
            with tf.device(device):
                copy = tf.Variable(value.value, trainable=False)
            scalars.append((value, copy))
            vars(twin)[name] = _shallow_copy(value, _value=copy)
    if "inner_optimizer" in vars(optimizer):
        inner = twin_for(optimizer.inner_optimizer, variables, device)
        vars(twin)["inner_optimizer"] = inner.optimizer
        return Twin(twin, scalars + inner.scalars)
    wanted = {id(variable) for variable in variables}
    trainable = enumerate(optimizer._trainable_variables)
    places = [place for place, variable in trainable if id(variable) in wanted]
    for name in ("_trainable_variables", "_model_variables_moving_average"):
        known = getattr(optimizer, name, None)
        if known is not None:
            vars(twin)[name] = [known[place] for place in places]
    vars(twin)["global_clipnorm"] = None
    return Twin(twin, scalars)


def _shallow_copy(original: Any, **changed: Any) -> Any:
    """A copy, which Keras' own classes do not make."""
    copy = object.__new__(type(original))
    vars(copy).update(vars(original), **changed)
    return copy
