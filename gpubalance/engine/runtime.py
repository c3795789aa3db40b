"""Sets TensorFlow up in this process: the run's devices and no others, threads, precision, the strategy."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine import cuda_libraries
from gpubalance.errors import EnvironmentFault
from gpubalance.remedies import known
from gpubalance.settings.device import Device
from gpubalance.settings.requests import Settings

_BUS_ID = re.compile(r"pci bus id: ([0-9a-fA-F:.]+)")


def set_up(devices: Sequence[Device], settings: Settings, *, seed: int) -> tuple[str, ...]:
    """Gives TensorFlow exactly these devices and returns its names for them, in order: `GPU:0`, `GPU:1`.

    Must be the first use of TensorFlow in the process. The environment that TensorFlow reads when it is imported
    (which GPUs are visible, in which order) is set by whoever started the process. Raises EnvironmentFault when a
    device is missing: a run never falls back to the CPU.
    """
    keras.config.set_floatx("float32")  # the user's keras.json may say otherwise
    keras.config.set_image_data_format("channels_last")
    keras.utils.set_random_seed(seed)
    tf.config.experimental.enable_tensor_float_32_execution(settings.precision != "float32")
    if settings.precision.startswith("mixed_"):
        keras.mixed_precision.set_global_policy(settings.precision)
    return use_devices(devices)


def use_devices(devices: Sequence[Device]) -> tuple[str, ...]:
    """TensorFlow's names for these devices, which it is set up for if it was not used before.

    Raises EnvironmentFault where it was, without them.
    """
    return _set_up_cpus(len(devices)) if devices[0].simulated else _set_up_gpus(devices)


def _set_up_cpus(count: int) -> tuple[str, ...]:
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or ()) < count:  # else they are there, or will be
        try:
            _configure_cpus(cpu, count)
        except RuntimeError as error:
            raise _used_before(f"has fewer CPU devices than {count}") from error
    return tuple(f"CPU:{i}" for i in range(count))


def _used_before(how: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"TensorFlow was used before the split's devices were set up, and {how}",
        remedy="enter split.scope() before anything else that uses TensorFlow",
    )


def _configure_cpus(cpu: Any, count: int) -> None:
    # Each device may sleep or compute in a thread of its own, while others hand the work on.
    tf.config.threading.set_inter_op_parallelism_threads(2 * count + 2)
    # Several devices share the cores; a single plain one may have them all.
    tf.config.threading.set_intra_op_parallelism_threads(max(1, len(os.sched_getaffinity(0)) // count))
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)])


def _set_up_gpus(devices: Sequence[Device]) -> tuple[str, ...]:
    physical = tf.config.list_physical_devices("GPU")
    if not physical:
        raise EnvironmentFault(
            f"TensorFlow {tf.__version__} sees no GPU, though the driver shows {_names(devices)}{_missing_libraries()}",
            cause=known("cuda-library-missing").cause,
            remedy=f"{known('cuda-library-missing').remedy}; the log tells which",
        )
    try:
        for gpu in physical:
            tf.config.experimental.set_memory_growth(gpu, True)
    except (RuntimeError, ValueError) as error:
        if not all(map(tf.config.experimental.get_memory_growth, physical)):
            fault = _used_before("took all of the GPUs' memory")
            warnings.warn(f"{fault.message}: {fault.remedy} ({error})", stacklevel=2)
    logical = tf.config.list_logical_devices("GPU")
    found = bus_ids(_descriptions())
    missing = missing_devices(devices, found, len(logical))
    if missing:
        raise EnvironmentFault(
            f"TensorFlow {tf.__version__} leaves out {_names(missing)}",
            cause=known("left-out").cause,
            remedy=known("left-out").remedy,
        )
    return tuple(f"GPU:{i}" for i in order_of(devices, found))


def _missing_libraries() -> str:
    """`: these can't be loaded: libcudnn.so.9`, of those that TensorFlow's build wants; empty where all can."""
    build, packages = tf.sysconfig.get_build_info(), Path(tf.__file__).parents[1]
    wanted = cuda_libraries.wanted(build.get("cuda_version"), build.get("cudnn_version"))
    missing = [name for name in wanted if cuda_libraries.load(name, packages, os.environ)[0] is None]
    return f"; these libraries can't be loaded: {', '.join(missing)}" if missing else ""


def survey(devices: Sequence[Device]) -> tuple[dict[str, str], bool | None]:
    """UUID → why, of each GPU that TensorFlow can't use here; and whether all it has take memory as they need it."""
    physical = tf.config.list_physical_devices("GPU")
    if not physical:
        return {d.uuid: f"TensorFlow {tf.__version__} sees no GPU: a CUDA library is missing" for d in devices}, None
    for gpu in physical:
        tf.config.experimental.set_memory_growth(gpu, True)
    count = len(tf.config.list_logical_devices("GPU"))
    missing = missing_devices(devices, bus_ids(_descriptions()), count)
    growth = all(map(tf.config.experimental.get_memory_growth, physical))
    return {d.uuid: f"TensorFlow {tf.__version__} leaves it out" for d in missing}, growth


def _descriptions() -> list[str]:
    """TensorFlow's own description of each of its GPUs, in its order; it holds the PCI bus id."""
    from tensorflow.python.client import device_lib  # the only door to a device's bus id

    return [d.physical_device_desc for d in device_lib.list_local_devices() if d.device_type == "GPU"]


def bus_ids(descriptions: Sequence[str]) -> list[str | None]:
    """The PCI bus id in each of TensorFlow's device descriptions, lower case; None where there is none."""
    matches = [_BUS_ID.search(text) for text in descriptions]
    return [match[1].lower() if match else None for match in matches]


def missing_devices(devices: Sequence[Device], found: Sequence[str | None], count: int) -> list[Device]:
    """The devices asked for that TensorFlow does not have. By bus id; where it gives none, those past its count."""
    if any(bus_id is None for bus_id in found) or len(found) != count or any(d.bus_id is None for d in devices):
        return list(devices[count:])
    return [device for device in devices if (device.bus_id or "").lower() not in found]


def order_of(devices: Sequence[Device], found: Sequence[str | None]) -> list[int]:
    """TensorFlow's number of each device; by bus id, never by position where the bus ids are known."""
    numbers = {bus_id: number for number, bus_id in enumerate(found)}
    wanted = [(d.bus_id or "").lower() for d in devices]
    if not all(bus_id in numbers for bus_id in wanted):
        return list(range(len(devices)))  # CUDA_VISIBLE_DEVICES gave them in this order
    return [numbers[bus_id] for bus_id in wanted]


def _names(devices: Sequence[Device]) -> str:
    return ", ".join(f"{d.label} ({d.name}, {d.uuid})" for d in devices)


def build_strategy(names: Sequence[str], all_reduce: str) -> Any:
    """MirroredStrategy on these devices. `auto` is TensorFlow's own choice: NCCL for GPUs, a ring for CPUs."""
    choices: dict[str, Any] = {
        "auto": lambda: None,
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
        "one-device": tf.distribute.ReductionToOneDevice,
    }
    return tf.distribute.MirroredStrategy(list(names), cross_device_ops=choices[all_reduce]())


def memory_limit_bytes(name: str) -> int | None:
    """What TensorFlow's allocator may take of a device; None where it has no limit of its own."""
    if name.startswith("GPU"):
        from tensorflow.python.client import device_lib  # nothing public tells it

        limits = {d.name: int(d.memory_limit) for d in device_lib.list_local_devices()}
        return limits.get(f"/device:{name}")
    limit = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "")
    limited = os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true") and limit.isdigit()
    return int(limit) << 20 if limited else None


def memory_peak_bytes(name: str) -> int | None:
    """The most memory that TensorFlow held on a device since the last reset; None where its allocator does not tell.

    All CPU devices of a process have one allocator: of several, none has a peak of its own.
    """
    try:
        return int(tf.config.experimental.get_memory_info(name)["peak"]) or None
    except ValueError:
        return None


def reset_memory_peak(name: str) -> None:
    """Resets the peak."""
    with contextlib.suppress(ValueError):
        tf.config.experimental.reset_memory_stats(name)


def wait_for(names: Sequence[str]) -> None:
    """Returns when every device has done all that was queued on it."""
    marks = []
    for name in names:
        with tf.device(name):
            marks.append(tf.zeros(()) + 1.0)
    for mark in marks:
        mark.numpy()  # the copy to the host waits for the device's stream
