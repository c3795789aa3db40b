"""What gpubalance uses or replaces of Keras and TensorFlow that is not their public interface.

No other file imports from `keras.src` or `tensorflow.python`. All of it was read in Keras 3.12,
3.14.1, 3.15.1 and a nightly 3.16, and in TensorFlow 2.20, 2.21 and 2.22.0rc0; where a version
differs, that is said. The first part is what is replaced: each is a target for `replacing.acting`,
with the reason. The second is what is called.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src.backend.common import global_state, masking
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.callbacks.callback_list import CallbackList
from keras.src.losses import loss as losses
from keras.src.trainers.data_adapters import get_data_adapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.utils.io_utils import print_msg
from keras.src.utils.python_utils import is_default, pythonify_logs
from tensorflow.python.client import device_lib
from tensorflow.python.distribute import (
    cross_device_utils,
    mirrored_run,
    mirrored_strategy,
)
from tensorflow.python.eager import context as eager_context
from tensorflow.python.ops import (
    collective_ops,
    gen_candidate_sampling_ops,
    gen_random_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
    script_ops,
)

from gpubalance.engine.replacing import (
    Attribute,
    Method,
    act_always,
    acting,
    acting_as,
    acting_here,
)
from gpubalance.errors import BadInput
from gpubalance.system.versions import numbers

__all__ = [
    "GeneratorDataAdapter",
    "collective_ops",
    "device_lib",
    "eager_context",
    "get_data_adapter",
    "is_default",
    "print_msg",
    "pythonify_logs",
]

# ---- What is replaced while a part's step is traced ----

# Keras divides a replica's loss by the number of replicas, and undoes that for the log. A part's
# loss has a weight instead.
SCALING_OF_LOSSES = (
    Method.of_all(losses, "scale_loss_for_distribution"),
    Method.of_all(losses, "unscale_loss_for_distribution"),
)
# Divides by the part's samples, weights or mask: brought to the share of the whole batch's.
LOSS_REDUCTION = Method.of_all(losses, "reduce_weighted_values")
apply_mask = losses.apply_mask  # as that does
# Tells which loss it is that is reduced.
LOSS_CALL = Method.of_all(keras.losses.Loss, "__call__")
# Tells which variables a step changes: the replicas' changes are combined.
VARIABLE_ASSIGN = Method.of_all(keras.Variable, "assign")
# A layer keeps its losses until its model is called again, which another replica does meanwhile:
# where a synchronised layer waits for all of them, each would go on with what the last one added.
ADD_LOSS = Method.of_all(keras.Layer, "add_loss")
OWN_LOSSES = Method.of_all(keras.Layer, "_get_own_losses")
CLEAR_LOSSES = Method.of_all(keras.Layer, "_clear_losses")
# Gives all replicas the same seed, so the same noise.
NEXT_SEED = Method.of_all(keras.random.SeedGenerator, "next")
# Applies gradients; each replica's are summed first. A LossScaleOptimizer has one of its own, which
# calls that of the optimizer in it under a condition.
OPTIMIZER_APPLY = Method.of_all(keras.optimizers.Optimizer, "apply")
LOSS_SCALE_APPLY = Method.of_all(keras.optimizers.LossScaleOptimizer, "apply")
# Sums gradients over the replicas after it has clipped them and looked for infinities, which is a
# replica's own part then. Here the sum comes first, and must not come again.
OPTIMIZER_SUM = Method.of_all(keras.optimizers.Optimizer, "_all_reduce_sum_gradients")
# Update a variable with many elementwise operations. TensorFlow has one kernel for each.
ADAM_UPDATE = Method.of_all(keras.optimizers.Adam, "update_step")
SGD_UPDATE = Method.of_all(keras.optimizers.SGD, "update_step")
# Report the parity check whose gradients a step takes.
ENTER_TAPE = Method.of_all(tf.GradientTape, "__enter__")
TAPE_GRADIENT = Method.of_all(tf.GradientTape, "gradient")
# Makes a variable on each of a strategy's devices, with the initial value of the first.
CREATE_VARIABLE = Method.of_all(mirrored_strategy.MirroredExtended, "_create_variable")
# TensorFlow's functions that divide by the number of replicas.
AVERAGE_LOSS = Method.of_all(tf.nn, "compute_average_loss")
SCALE_REGULARIZATION = Method.of_all(tf.nn, "scale_regularization_loss")
# Where a metric's result is computed from the values of all parts: a trace would keep these.
FUNCTION_CALL = Method.of_all(type(tf.function(lambda: None)), "__call__")
# Gives each sum of a step its key, in Python, whenever the step is called: see `_KeysOfSums`.
_NEXT_SUM_KEY = Method.of_all(
    cross_device_utils.CollectiveReplicaLauncher, "_next_instance_key"
)


def metric_result(metric: Any) -> Method:
    """A metric's `result`: in the logs those of all parts take its place."""
    return Method.of(metric, "result")


def moments(layer: Any) -> Method:
    """How a BatchNormalization takes its statistics: parts of a batch have other ones."""
    return Method.of(layer, "_moments")


def activity_regularizer(layer: Any) -> Attribute:
    """What a layer adds to the loss for its activities: a part adds its share.

    Keras divides it by the layer's samples since 3.14.
    """
    return Attribute.of(layer, "activity_regularizer", keras.Layer)


def assignments(variable: Any) -> list[Method]:
    """The assignments to a Keras variable's value, that is to TensorFlow's variable."""
    kind = type(variable._value)
    names = ("assign", "assign_add", "assign_sub")
    return [Method.of_all(kind, name) for name in names]


_DRAWING_MODULES = (
    gen_random_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
    gen_candidate_sampling_ops,
)
_NO_NUMBERS = "_get_|_grad$|skip|eager_fallback"
_KINDS = "random_|stateless_|stateful_|truncated_|parameterized_|multinomial$|.*_candidate_sampler$"
_DRAWING = re.compile(f"(?!.*({_NO_NUMBERS}))({_KINDS})")


@functools.cache
def drawing_functions() -> dict[Method, inspect.Signature]:
    """TensorFlow's functions that draw numbers: the parity check wants the same for all parts."""
    functions = {}
    for module in _DRAWING_MODULES:
        for name, function in list(vars(module).items()):
            if _DRAWING.match(name) and inspect.isfunction(function):
                functions[Method.of_all(module, name)] = inspect.signature(function)
    return functions


# TensorFlow traces each replica in a thread of its own, and a LossScaleOptimizer applies gradients
# in new ones: what acts in the thread that starts them must act there too.
_REPLICA_THREAD_INIT = Method.of_all(mirrored_run._MirroredReplicaThread, "__init__")
_REPLICA_THREAD_RUN = Method.of_all(mirrored_run._MirroredReplicaThread, "run")
_ACTING = "_gpubalance_acting"


def _begin_thread(begin: Any, thread: Any, *arguments: Any, **named: Any) -> None:
    begin(thread, *arguments, **named)
    setattr(thread, _ACTING, acting_here())


def _run_thread(run: Any, thread: Any) -> None:
    # One that began before this module was loaded has nothing to act by.
    with acting_as(getattr(thread, _ACTING, {})):
        run(thread)


act_always({_REPLICA_THREAD_INIT: _begin_thread, _REPLICA_THREAD_RUN: _run_thread})

# ---- What is replaced while Keras trains a model over devices ----

# Puts arrays on the first GPU, all of them.
EPOCH_ITERATOR_INIT = Method.of_all(TFEpochIterator, "__init__")
# Asks for the next epoch's batches only when this epoch's have ended.
EPOCH_ITERATOR_BATCHES = Method.of_all(TFEpochIterator, "_get_iterator")
# Warns at the end of data whose length is not known.
EPOCH_ITERATOR_WARNING = Method.of_all(TFEpochIterator, "_interrupted_warning")
# Waits for the devices after each batch, to make numbers of the logs.
ON_TRAIN_BATCH_END = Method.of_all(CallbackList, "_on_train_batch_end")
ON_TEST_BATCH_END = Method.of_all(CallbackList, "_on_test_batch_end")
# Writes a backup: `launch` is told.
SAVE_BACKUP = Method.of_all(keras.callbacks.BackupAndRestore, "_save_model")
# Calls Python for TensorFlow, which hands on the text alone of what is raised there.
PYTHON_FUNCTION_CALL = Method.of_all(script_ops.FuncRegistry, "__call__")
# Turns XLA on by itself on a single GPU.
AUTO_XLA = Method.of_all(keras.Model, "_resolve_auto_jit_compile")


def of_training(model: Any, name: str) -> Attribute:
    """A model's strategy or one of the functions that Keras calls for a batch."""
    return Attribute.of(model, name, keras.Model)


def of_training_method(model: Any, name: str) -> Method:
    """Keras' own method of this name, which a class of the user's may extend."""
    return Method.of(model, name, keras.Model)


# ---- What is called ----


def slot_of(optimizer: Any, slots: str, variable: Any) -> Any:
    """The value of an optimizer's variable that goes with a trained one, on that one's device."""
    return getattr(optimizer, slots)[optimizer._get_variable_index(variable)].value


def called_flat(function: Any, arguments: Any) -> Any:
    """What a concrete function returns for tensors of the dtypes and ranks that it was traced for.

    Its `__call__` binds, casts and checks each of them: a quarter of what the host does for a small
    step.
    """
    return function._call_flat(tf.nest.flatten(arguments), function.captured_inputs)


def taking_keys_at_once() -> contextlib.AbstractContextManager[None]:
    """The sums of the function that is traced in the block take their keys by `_KeysOfSums`."""
    keys = _KeysOfSums(tf.compat.v1.get_default_graph())
    return acting({_NEXT_SUM_KEY: keys.of_next})


# All devices take the keys of a call at once: two threads must not take them in turns.
_RESERVING = threading.Lock()


class _KeysOfSums:
    """Gives the sums of one traced function their keys, from one capture for all devices.

    By a key the devices of a sum find each other, so each sum of each call has a new one.
    TensorFlow captures each by itself: some 50 µs of the host for each sum on each device. Here a
    call reserves as many as the function has sums; in the function they follow from the first. A
    sum in a function within it gets TensorFlow's own. Where one function calls it several times,
    all calls have the same keys: they run one after the other.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        # int32 [devices]: each one's first key of a call
        self._captured_keys: Any = None
        # By the launcher of a device
        self._first_keys: dict[Any, Any] = {}
        self._sum_counts: dict[Any, int] = {}

    def of_next(self, original: Any, launcher: Any) -> Any:
        """A key for the next sum of the device that the launcher has."""
        graph = tf.compat.v1.get_default_graph()
        while getattr(graph, "is_control_flow_graph", False):
            graph = graph.outer_graph
        is_in_our_graph = graph is self._graph and graph.building_function
        if not is_in_our_graph or not launcher._use_unique_instance_key():
            return original(launcher)
        with graph.as_default(), tf.device("CPU:0"):
            if launcher not in self._first_keys:
                self._capture_first_key(launcher)
            sums_before = self._sum_counts[launcher]
            self._sum_counts[launcher] += 1
            first_key = self._first_keys[launcher]
            return first_key + sums_before if sums_before else first_key

    def _capture_first_key(self, launcher: Any) -> None:
        if self._captured_keys is None:
            self._captured_keys = self._graph.capture_call_time_value(
                self._reserve, tf.TensorSpec([None], tf.int32)
            )
        place = len(self._first_keys)
        self._first_keys[launcher] = self._captured_keys[place]
        self._sum_counts[launcher] = 0

    def _reserve(self) -> Any:
        """Takes the keys of a call; returns each device's first one."""
        first_keys = []
        with _RESERVING:
            for launcher, count in self._sum_counts.items():
                keys = launcher._collective_keys
                with keys._lock:
                    next_keys = keys._instance_key_table[launcher._group_key]
                    first_keys.append(next_keys[launcher._device])
                    next_keys[launcher._device] += count
        with tf.device("CPU:0"):
            return tf.constant(first_keys, tf.int32)


mask_of = masking.get_keras_mask  # that a layer put on a tensor, or None
put_mask = masking.set_keras_mask
# Options of an optimizer that do not work under a strategy, and what to do instead.
_NOT_OVER_DEVICES = {
    "gradient_accumulation_steps": "leave it out; a plan's micro-batches do the same within a step",
    "ema_overwrite_frequency": "leave it out: without it, the averages replace "
    "the weights when training ends",
}


def inner_of(optimizer: Any) -> Any:
    """The optimizer that sums gradients: itself, or that in a LossScaleOptimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def check_optimizer(optimizer: Any) -> None:
    """Raises BadInput for an option of an optimizer that Keras does not do under a strategy."""
    inner = inner_of(optimizer)
    for option, instead in _NOT_OVER_DEVICES.items():
        if getattr(inner, option, None):
            raise BadInput(
                f"the model's optimizer sets {option}, which Keras does not support "
                "over several devices",
                remedy=instead,
            )


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


def ignores_class(loss: Any) -> bool:
    """Whether a loss leaves samples of a class out, which Keras 3.16 has in its config only."""
    if isinstance(loss, keras.losses.Loss) and is_keras_own(loss):
        return loss.get_config().get("ignore_class") is not None
    return getattr(loss, "ignore_class", None) is not None


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


def flag_of_graph(arguments: Any) -> bool | None:
    """The training flag with which one of a Functional's calls was built, if it counts.

    Up to Keras 3.15 the flag of the whole model overrides it (keras 20285).
    """
    if numbers(keras.__version__) < (3, 16):
        return None
    return arguments.kwargs.get("training")  # type: ignore[no-any-return]


def run_as_graph(
    operation: Any, *, training: bool, arguments: Any, values: Mapping[int, Any]
) -> list[Any]:
    """Runs one of a Functional's calls, with this training flag whatever the graph says.

    `values` are those of the symbolic tensors, by their ids. See `flag_of_graph`.
    """
    args, kwargs = arguments.fill_in(values)
    if "training" in getattr(operation, "_call_context_args", ()):
        kwargs["training"] = training
    outputs = operation(*args, **kwargs)
    return keras.tree.flatten(outputs)  # type: ignore[no-any-return]


def inputs_of(function: Any, data: Any) -> list[Any]:
    """A Functional's flat inputs from a user's data, cast as it does, and by name from a dict.

    Raises ValueError for other shapes than it takes: a trace for those would compute anything.
    """
    function._assert_input_compatibility(data)
    return list(function._standardize_inputs(data))


def without_xla() -> contextlib.AbstractContextManager[None]:
    """Makes models compiled in the block use XLA only if asked to: on a GPU Keras' "auto" would."""
    return acting({AUTO_XLA: lambda *_: False})


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


def forget_traces(model: Any) -> None:
    """Has Keras' own methods of a model, and of all that share weights with it, traced again.

    A trace keeps the values that variables had before they were moved. Models that share some, as
    a nested one or a feature extractor, are known to nobody but the garbage collector, which finds
    them by their classes.
    """
    kinds = [keras.Model]
    for kind in kinds:  # which grows meanwhile
        kinds += kind.__subclasses__()
    moved = set(map(id, model.variables))
    for other in gc.get_referrers(*kinds):
        if isinstance(other, keras.Model) and moved.intersection(
            map(id, other.variables)
        ):
            other.train_function = other.test_function = other.predict_function = None


def move_slots(optimizer: Any) -> None:
    """Moves what an optimizer keeps for each variable to where the variable is."""
    inner = inner_of(optimizer)
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


class OptimizerCopy(NamedTuple):
    """An optimizer for some variables of another, and how its scalars follow the other's.

    Each pair is a Keras variable of the original, and the tf.Variable that copies it.
    """

    optimizer: Any
    scalars: list[tuple[Any, Any]]


def copy_for(optimizer: Any, variables: Sequence[Any], device: str) -> OptimizerCopy:
    """An optimizer with the same slots that updates only these of its variables, on their device.

    It has copies there of what the optimizer keeps beside its slots (iterations, learning rate,
    loss scale). It does not clip by a global norm.
    """
    copied = _shallow_copy(optimizer)
    scalars: list[tuple[Any, Any]] = []
    for name, value in vars(optimizer).items():
        if isinstance(value, keras.Variable):
            with tf.device(device):
                copy = tf.Variable(value.value, trainable=False)
            scalars.append((value, copy))
            vars(copied)[name] = _shallow_copy(value, _value=copy)
    if "inner_optimizer" in vars(optimizer):
        inner = copy_for(optimizer.inner_optimizer, variables, device)
        vars(copied)["inner_optimizer"] = inner.optimizer
        return OptimizerCopy(copied, scalars + inner.scalars)
    wanted = {id(variable) for variable in variables}
    trainable = enumerate(optimizer._trainable_variables)
    places = [place for place, variable in trainable if id(variable) in wanted]
    for name in ("_trainable_variables", "_model_variables_moving_average"):
        known = getattr(optimizer, name, None)
        if known is not None:
            vars(copied)[name] = [known[place] for place in places]
    vars(copied)["global_clipnorm"] = None
    return OptimizerCopy(copied, scalars)


def _shallow_copy(original: Any, **changed: Any) -> Any:
    """A copy, which Keras' own classes do not make."""
    copy = object.__new__(type(original))
    vars(copy).update(vars(original), **changed)
    return copy
