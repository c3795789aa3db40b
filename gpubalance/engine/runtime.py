"""Sets TensorFlow up in this process: devices, precision, and the other processes of a run."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import keras
import tensorflow as tf

from gpubalance.engine.failures import used_before
from gpubalance.engine.gpus import set_up_gpus
from gpubalance.engine.keras_patches import eager_context, follow_floatx
from gpubalance.errors import EnvironmentFault
from gpubalance.settings.choices import AllReduce, Precision, names_file_or_code
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device
from gpubalance.settings.settings import Settings
from gpubalance.system import versions


def use_precision(precision: Precision) -> None:
    """Sets both for the whole process: models that are built from now on have the policy.

    One that is not mixed leaves the policy to Keras' floatx, which a user may have set to float64.
    """
    if _is_mixed(precision):
        keras.config.set_dtype_policy(precision)
    else:
        follow_floatx()
    tf.config.experimental.enable_tensor_float_32_execution(precision != "float32")


def policy_of(precision: Precision) -> str:
    """Keras' name of its policy."""
    return precision if _is_mixed(precision) else keras.config.floatx()


def precision_of(model: keras.Model) -> Precision | None:
    """The precision that the model trains in here; None if it is none of ours, such as float64.

    By its layers with weights of floating dtypes: those of a saved model have the policy that they
    were saved with, some of a mixed model stay float32, and those that look up or hash have
    integers. Inputs, and models of layers, have the process' policy by themselves.
    """
    layers = [layer for layer in model._flatten_layers() if _has_precision(layer)]
    policies = [layer.dtype_policy.name for layer in layers or [model]]
    for name in policies:
        if _is_mixed(name):
            return cast("Precision", name)
    if "float32" not in policies:
        return None
    is_tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    return "tf32" if is_tf32 else "float32"


def _is_mixed(name: str) -> bool:
    return name in ("mixed_float16", "mixed_bfloat16")


def _has_precision(layer: Any) -> bool:
    """Whether it has weights of a floating dtype, or may have them once it is built."""
    if isinstance(layer, keras.Model | keras.layers.InputLayer):
        return False
    own = layer._trainable_variables + layer._non_trainable_variables
    return tf.as_dtype(layer.variable_dtype).is_floating and bool(
        own or not layer.built
    )


# After this long the others notice a process that is stopped or cut off. They notice at once one
# that has died.
_HEARTBEAT_S = 10
# A process that ends waits this long for the others, as its parent ends them all.
_SHUTDOWN_S = 5


def join_cluster(cluster: Cluster, kind: str, all_reduce: AllReduce) -> Any:
    """The strategy of the whole cluster, once all its processes are there.

    Must be the first use of TensorFlow. Stock MultiWorkerMirroredStrategy wants the same number of
    devices in every process: here each has one, of that `kind`, `CPU` or `GPU`. The wait has no
    time limit: if a peer never comes, the parent must end the process.
    """
    # TensorFlow's own coordination service, which the strategy then leaves alone: its own deadlines
    # are minutes. It has no public interface.
    job = eager_context.coordination_config_pb2.CoordinatedJob(
        name="worker", num_tasks=len(cluster.addresses)
    )
    eager_context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        coordinated_jobs=[job],
        heartbeat_timeout_in_ms=_HEARTBEAT_S * 1000,
        shutdown_barrier_timeout_in_ms=_SHUTDOWN_S * 1000,
    )
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.rank,
        rpc_layer="grpc",
        num_accelerators={kind: 1},
    )
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementation_of(all_reduce, kind)
    )
    return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)


def implementation_of(all_reduce: AllReduce, kind: str) -> Any:
    """How TensorFlow's collectives sum between hosts.

    `auto` is NCCL for GPUs, the ring over gRPC for CPUs. TensorFlow's own AUTO is the ring for GPUs
    too: CollectiveParamResolverLocal takes NCCL only if it is asked for.
    """
    collectives = tf.distribute.experimental.CommunicationImplementation
    by_nccl = all_reduce == "nccl" or (all_reduce == "auto" and kind == "GPU")
    return collectives.NCCL if by_nccl else collectives.RING


@functools.cache
def gather_over(
    strategy: Any, cluster: Cluster | None
) -> Callable[[float], tuple[float, ...]]:
    """A function that all processes call together; it returns all their numbers, by rank."""
    if cluster is None:
        return lambda number: (number,)
    count = len(cluster.addresses)

    @tf.function(input_signature=[tf.TensorSpec((count,), tf.float64)], autograph=False)
    def total(numbers: Any) -> Any:
        own = strategy.run(tf.identity, args=(numbers,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, own, axis=None)

    def gather(number: float) -> tuple[float, ...]:
        numbers = [0.0] * count
        numbers[cluster.rank] = float(number)
        return tuple(total(tf.constant(numbers, tf.float64)).numpy().tolist())

    return gather


def set_up(
    devices: Sequence[Device], settings: Settings, *, seed: int, joins: bool = False
) -> tuple[str, ...]:
    """Gives TensorFlow exactly these devices, and returns its names for them: `GPU:0`, `GPU:1`.

    Must be the first use of TensorFlow in the process. Whoever started the process has set the
    environment that TensorFlow reads on import (which GPUs are visible, in which order). `joins`:
    the process joins a cluster next. What this sets, a split's `scope()` sets too, but for seeds,
    which are a script's own.

    Raises EnvironmentFault if a device is missing: a run never falls back to the CPU.
    """
    # The user's own trains by the user's own keras.json
    if not names_file_or_code(settings.model):
        keras.config.set_floatx("float32")
        keras.config.set_image_data_format("channels_last")
    keras.utils.set_random_seed(seed)
    use_precision(settings.precision)
    return use_devices(devices, joins=joins)


def use_devices(
    devices: Sequence[Device], *, joins: bool = False, cpus: Sequence[int] = ()
) -> tuple[str, ...]:
    """TensorFlow's names for these devices, in order; sets it up for them if it is not yet.

    `cpus` are the numbers of simulated devices' CPU devices; without them they count from 0. Raises
    EnvironmentFault if TensorFlow was used before without them, or leaves one out, and for a Keras
    older than those in keras_patches.
    """
    if versions.numbers(keras.__version__) < versions.TESTED["Keras"][0]:
        raise EnvironmentFault(
            f"Keras {keras.__version__} is too old: gpubalance needs internals that "
            "it lacks",
            remedy="pip install 'keras>=3.12'",
        )
    if devices[0].simulated:
        return _set_up_cpus(cpus or range(len(devices)))
    return set_up_gpus(devices, joins=joins)


def _set_up_cpus(numbers: Sequence[int]) -> tuple[str, ...]:
    count = max(numbers) + 1
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu) or ()
    if len(configured) < count:
        cores = len(os.sched_getaffinity(0))
        threading = tf.config.threading
        try:
            # Each device may sleep or compute in its own thread, while others pass the work on.
            threading.set_inter_op_parallelism_threads(2 * count + 2)
            # Several devices share the cores; a single one may use them all.
            threading.set_intra_op_parallelism_threads(max(1, cores // count))
            wanted = [tf.config.LogicalDeviceConfiguration()] * count
            tf.config.set_logical_device_configuration(cpu, wanted)
        except RuntimeError:
            raise used_before(f"has fewer CPU devices than {count}") from None
    return tuple(f"CPU:{number}" for number in numbers)


def repetitions(
    seconds: float, at_least: int, agreed: Callable[[bool], bool] = bool
) -> Iterator[None]:
    """Yields until `seconds` are over, and at least `at_least` times.

    `agreed` gives all processes of a cluster the same answer.
    """
    ends_s = time.perf_counter() + seconds
    made = 0
    while made < at_least or (seconds and agreed(time.perf_counter() < ends_s)):
        yield
        made += 1


def wait_for(names: Sequence[str]) -> None:
    """Waits until every device has done all that was queued on it."""
    ends = []
    for name in names:
        with tf.device(name):
            ends.append(tf.zeros(()) + 1.0)
    for end in ends:
        end.numpy()  # the copy to the host waits for the device's stream
