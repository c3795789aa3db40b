"""Sets TensorFlow up in this process: CUDA libraries, devices, precision, other processes."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import keras
import tensorflow as tf

from gpubalance.engine.failures import used_before
from gpubalance.engine.keras_patches import eager_context, follow_floatx
from gpubalance.errors import EnvironmentFault
from gpubalance.remedies import known_error
from gpubalance.settings.choices import AllReduce, Precision, names_file_or_code
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device
from gpubalance.settings.settings import Settings
from gpubalance.system import versions
from gpubalance.system.versions import numbers

# Each library's file name, by CUDA's major version: not all have CUDA's number.
_LIBRARY_NAMES = {
    12: (
        "cudart.so.12",
        "cublas.so.12",
        "cublasLt.so.12",
        "cufft.so.11",
        "cusolver.so.11",
        "cusparse.so.12",
    ),
    13: (
        "cudart.so.13",
        "cublas.so.13",
        "cublasLt.so.13",
        "cufft.so.12",
        "cusolver.so.12",
        "cusparse.so.12",
    ),
}


def library_names(cuda: str | None, cudnn: str | None) -> tuple[str, ...]:
    """File names of the libraries for a build with these versions, such as `12.5.1` and `9`.

    There are none without CUDA.
    """
    built_for = numbers(cuda)
    if not built_for:
        return ()
    names = _LIBRARY_NAMES.get(built_for[0], _LIBRARY_NAMES[max(_LIBRARY_NAMES)])
    cudnn_major, *_ = numbers(cudnn) or (9,)
    return tuple(
        f"lib{name}" for name in (*names, f"cudnn.so.{cudnn_major}", "nccl.so.2")
    )


def load_library(
    name: str, packages: Path, environment: Mapping[str, str]
) -> ctypes.CDLL | str:
    """The library, or why it can't be loaded.

    Searches where TensorFlow does: LD_LIBRARY_PATH, NVIDIA's wheels under `packages` (the
    site-packages folder), then the system's paths.
    """
    files = []
    for folder in environment.get("LD_LIBRARY_PATH", "").split(":"):
        file = Path(folder) / name
        if folder and file.exists():
            files.append(str(file))
    files += map(str, sorted(packages.glob(f"nvidia/*/lib/{name}")))
    files.append(name)
    try:
        return ctypes.CDLL(files[0])
    except OSError as error:
        return str(error)


def cudnn_version(cudnn: ctypes.CDLL) -> str | None:
    """The version, such as `9.10.2`; None if the library does not report one."""
    try:
        ask = cudnn.cudnnGetVersion
    except AttributeError:
        return None
    ask.restype = ctypes.c_size_t
    number = int(ask())
    if not number:
        return None
    thousands = 10_000 if number >= 90_000 else 1000  # since 9 each part has two digits
    return f"{number // thousands}.{number % thousands // 100}.{number % 100}"


_BUS_ID = re.compile(r"pci bus id: ([0-9a-fA-F:.]+)")


def set_up_gpus(devices: Sequence[Device], *, joins: bool) -> tuple[str, ...]:
    """TensorFlow's names for these GPUs, in order; it takes their memory as needed.

    `joins`: the process joins a cluster next. Raises EnvironmentFault if a GPU is missing.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        row = known_error("cuda-library-missing")
        raise EnvironmentFault(
            f"TensorFlow {tf.__version__} sees no GPU, although the driver lists "
            f"{_names(devices)}{_missing_libraries()}",
            cause=row.cause,
            remedy=f"{row.remedy}; the log says which",
        )
    try:
        _let_grow(gpus)
    except (RuntimeError, ValueError) as error:
        if not _all_grow(gpus):
            fault = used_before("took all of the GPUs' memory")
            warnings.warn(f"{fault.message}: {fault.remedy} ({error})", stacklevel=2)
    # Asking which GPU is which starts TensorFlow's runtime, too early to join a cluster: there a
    # process has one GPU.
    if joins:
        return ("GPU:0",)
    numbers = _numbers_here(devices)
    missing = _left_out(devices, numbers)
    if missing:
        row = known_error("left-out")
        message = f"TensorFlow {tf.__version__} leaves out {_names(missing)}"
        raise EnvironmentFault(message, cause=row.cause, remedy=row.remedy)
    return tuple(f"GPU:{number}" for number in numbers)


def survey(devices: Sequence[Device]) -> tuple[dict[str, str], bool | None]:
    """Why TensorFlow can't use a GPU here, by UUID; and whether its GPUs take memory as needed."""
    version = f"TensorFlow {tf.__version__}"
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        reason = f"{version} sees no GPU: a CUDA library is missing"
        return {device.uuid: reason for device in devices}, None
    _let_grow(gpus)
    missing = _left_out(devices, _numbers_here(devices))
    return {device.uuid: f"{version} leaves it out" for device in missing}, _all_grow(
        gpus
    )


def wanted_libraries() -> dict[str, Any]:
    """The CUDA libraries that TensorFlow's build wants, by file name.

    Each is the loaded library, or the reason why it can't be loaded.
    """
    build = tf.sysconfig.get_build_info()
    packages = Path(tf.__file__).parents[1]
    names = library_names(*versions.built_for(build))
    return {name: load_library(name, packages, os.environ) for name in names}


def local_gpus() -> list[Any]:
    """TensorFlow's own descriptions of its GPUs: the only way to a bus id or a memory limit."""
    from gpubalance.engine.keras_patches import device_lib

    # First sets them up in the way that this process wants
    tf.config.list_logical_devices("GPU")
    return [
        device
        for device in device_lib.list_local_devices()
        if device.device_type == "GPU"
    ]


def numbers_of(
    devices: Sequence[Device], descriptions: Sequence[str]
) -> list[int | None]:
    """TensorFlow's number of each device by its descriptions of GPUs, None for one it leaves out.

    Devices are found by their PCI bus ids; if one is unknown, by their order in
    CUDA_VISIBLE_DEVICES.
    """
    numbers: dict[str, int] = {}
    for number, description in enumerate(descriptions):
        bus_id = _BUS_ID.search(description)
        if bus_id:
            numbers[bus_id[1].lower()] = number
    if len(numbers) < len(descriptions) or any(
        device.bus_id is None for device in devices
    ):
        places = range(len(devices))
        return [place if place < len(descriptions) else None for place in places]
    return [numbers.get(str(device.bus_id).lower()) for device in devices]


def _numbers_here(devices: Sequence[Device]) -> list[int | None]:
    return numbers_of(devices, [gpu.physical_device_desc for gpu in local_gpus()])


def _let_grow(gpus: Sequence[Any]) -> None:
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)


def _all_grow(gpus: Sequence[Any]) -> bool:
    return all(map(tf.config.experimental.get_memory_growth, gpus))


def _missing_libraries() -> str:
    """`; these libraries can't be loaded: libcudnn.so.9`; empty if all can."""
    missing = [
        name for name, library in wanted_libraries().items() if isinstance(library, str)
    ]
    return f"; these libraries can't be loaded: {', '.join(missing)}" if missing else ""


def _left_out(devices: Sequence[Device], numbers: Sequence[int | None]) -> list[Device]:
    return [
        device
        for device, number in zip(devices, numbers, strict=True)
        if number is None
    ]


def _names(devices: Sequence[Device]) -> str:
    return ", ".join(
        f"{device.label} ({device.name}, {device.uuid})" for device in devices
    )


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
