"""The Keras internals that every step depends on: those of the versions that `runtime.use_devices`
takes.

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
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import global_state

from gpubalance.engine.replaced import replaced
from gpubalance.errors import BadInput

# The mask that a layer put on a tensor, or None; puts a mask on a tensor, for the layers that take
# it.
mask_of, put_mask = backend.get_keras_mask, backend.set_keras_mask
SUM = "_all_reduce_sum_gradients"
# Options of an optimizer that do not work under a strategy, and what to do instead.
_NOT_OVER_DEVICES = {
    "gradient_accumulation_steps": "leave it out; a plan's micro-batches do the same within a step",
    "ema_overwrite_frequency": (
        "leave it out: the weights become their averages when the training ends"
    ),
}


def summing(optimizer: Any) -> Any:
    """The optimizer whose method SUM sums gradients over the replicas: itself, or the one inside a
    LossScaleOptimizer.

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
    """Has the policy be that of Keras' floatx again, when a layer next needs one: as if no policy
    had been set.
    """
    global_state.set_global_attribute("dtype_policy", None)


def is_keras_own(thing: Any) -> bool:
    """Whether a function, or the class of a layer, metric or loss, comes with Keras."""
    of = thing if hasattr(thing, "__name__") else type(thing)
    return str(getattr(of, "__module__", "")).startswith("keras.")


def function_of(loss: Any) -> Any:
    """The function that one of Keras' losses was made of, else itself."""
    return getattr(loss, "fn", loss)


def name_of(loss: Any) -> str:
    """The name of a loss: of a user's function, or of a class."""
    if isinstance(loss, str):
        return loss
    of = loss.fn if type(loss).__name__ == "LossFunctionWrapper" else loss
    return str(getattr(of, "__name__", type(of).__name__))


def users_parts(model: Any) -> list[str]:
    """The names of layers and losses with code of the user's, and of a graph's operations that mix
    samples.
    """
    layers = model._flatten_layers()
    graphs = (graph_of(layer) for layer in layers)
    nodes = [node for graph in graphs if graph is not None for node in nodes_in_order(graph)]
    operations = [node for node in nodes if not isinstance(node.operation, keras.Layer)]
    mixing = [
        one.operation.name
        for one in operations
        if any(to.shape[:1] != (None,) for to in one.output_tensors)
    ]
    names = [layer.name for layer in layers if layer is not model and _is_users(layer)]
    return [
        *names,
        *mixing,
        *(["compute_loss"] if type(model).compute_loss is not keras.Model.compute_loss else []),
    ]


def _is_users(layer: Any) -> bool:
    given = (
        getattr(layer, name, None) for name in ("activation", "activity_regularizer", "function")
    )
    return not all(is_keras_own(one) for one in (layer, *given) if one is not None)


def graph_of(operation: Any) -> Any | None:
    """The Functional that a model runs; None for a layer, and for a model with a `call`
    of its own.
    """
    from keras.src.models.functional import Functional

    if isinstance(operation, keras.Sequential):
        return operation._functional if type(operation).call is keras.Sequential.call else None
    is_graph = isinstance(operation, Functional) and type(operation).call is Functional.call
    return operation if is_graph else None


def nodes_in_order(function: Any) -> list[Any]:
    """A Functional's calls, depth first from its outputs: each comes after its inputs, and a branch
    is in one piece.
    """
    from keras.src.ops.function import _build_map

    nodes, _ = _build_map(function.inputs, function.outputs)
    return [node for node in nodes if not node.is_input]


def run_as_graph(
    operation: Any, *, training: bool, arguments: Any, values: Mapping[int, Any]
) -> list[Any]:
    """Runs one of a Functional's calls as the Functional does; `values` has the symbolic tensors'
    values by their id.

    The training flag of the whole model overrides one that was given when the graph was built
    (keras 20285).
    """
    from keras.src.models.functional import operation_fn

    args, kwargs = arguments.fill_in(values)
    return keras.tree.flatten(operation_fn(operation, training=training)(*args, **kwargs))  # type: ignore[no-any-return]


def inputs_of(function: Any, given: Any) -> list[Any]:
    """A Functional's flat inputs from a user's data, cast as it does, and taken by name from a
    dict.
    """
    return list(function._standardize_inputs(given))


def without_xla() -> contextlib.AbstractContextManager[None]:
    """Makes models compiled inside the block use XLA only if asked to: Keras' "auto" would choose
    it on a GPU.
    """
    return replaced(keras.Model, _resolve_auto_jit_compile=lambda _: False)


def move(variable: Any, device: str) -> None:
    """Moves a variable's value to a device, for all layers that have it, and for an optimizer that
    knows it.
    """
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
        if isinstance(slots, list) and len(slots) == len(variables) and slots is not variables:
            for slot, variable in zip(slots, variables, strict=True):
                if isinstance(slot, keras.Variable):
                    move(slot, variable._value.device.rpartition("device:")[2])


def twin_for(
    optimizer: Any, variables: Sequence[Any], device: str
) -> tuple[Any, list[tuple[Any, Any]]]:
    """An optimizer with the same slots that updates only these of the variables that it knows, on
    their device.

    It has copies there of what the optimizer keeps beside its slots (iterations, learning rate,
    loss scale): a tf.Variable, the second of each returned pair. It does not clip by a global norm.
    """
    made, pairs = _twin(optimizer), []
    for name, value in vars(optimizer).items():
        if isinstance(value, keras.Variable):
            with tf.device(device):
                pairs.append((value, tf.Variable(value.value, trainable=False)))
            vars(made)[name] = _twin(value, _value=pairs[-1][1])
    if "inner_optimizer" in vars(optimizer):
        vars(made)["inner_optimizer"], of_inner = twin_for(
            optimizer.inner_optimizer, variables, device
        )
        return made, [*pairs, *of_inner]
    kept = {id(variable) for variable in variables}
    places = [place for place, one in enumerate(optimizer._trainable_variables) if id(one) in kept]
    for name in ("_trainable_variables", "_model_variables_moving_average"):
        known = getattr(optimizer, name, None)
        if known is not None:
            vars(made)[name] = [known[place] for place in places]
    vars(made)["global_clipnorm"] = None
    return made, pairs


def _twin(one: Any, **changed: Any) -> Any:
    """A shallow copy, which Keras' own classes do not make."""
    made = object.__new__(type(one))
    vars(made).update(vars(one), **changed)
    return made
