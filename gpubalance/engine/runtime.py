"""Sets TensorFlow up in this process: the run's devices and no others, threads, precision,
strategy.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine import cuda_libraries, hosts, precision
from gpubalance.errors import EnvironmentFault
from gpubalance.remedies import known_error
from gpubalance.settings.choices import AllReduce, names_file_or_code
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device
from gpubalance.settings.settings import Settings
from gpubalance.system import versions

_BUS_ID = re.compile(r"pci bus id: ([0-9a-fA-F:.]+)")


def set_up(
    devices: Sequence[Device], settings: Settings, *, seed: int, joins: bool = False
) -> tuple[str, ...]:
    """Gives TensorFlow exactly these devices and returns its names for them, in order: `GPU:0`,
    `GPU:1`.

    Must be the first use of TensorFlow in the process. Whoever started the process has set the
    environment that TensorFlow reads on import (which GPUs are visible, in which order). `joins`:
    the process joins a cluster next. What this sets, a split's `scope()` sets too, but for seeds,
    which are a script's own.

    Raises EnvironmentFault if a device is missing: a run never falls back to the CPU.
    """
    if not names_file_or_code(settings.model):  # the user's own trains by the user's own keras.json
        keras.config.set_floatx("float32")
        keras.config.set_image_data_format("channels_last")
    keras.utils.set_random_seed(seed)
    precision.use(settings.precision)
    return use_devices(devices, joins=joins)


def use_devices(
    devices: Sequence[Device], *, joins: bool = False, cpus: Sequence[int] = ()
) -> tuple[str, ...]:
    """TensorFlow's names for these devices, in order. Sets TensorFlow up for them unless it already
    has them.

    `cpus` are the numbers of simulated devices' CPU devices; without them they count from 0. Raises
    EnvironmentFault if it was used before without them, or leaves one out, and for a Keras whose
    internals are not known: see keras_inside.
    """
    if not (3, 12) <= versions.numbers(keras.__version__) < (3, 16):
        raise EnvironmentFault(
            f"Keras {keras.__version__} is not known here, and its internals may differ",
            remedy="pip install 'keras>=3.12,<3.16'",
        )
    if devices[0].simulated:
        return _set_up_cpus(cpus or range(len(devices)))
    return _set_up_gpus(devices, joins=joins)


def _set_up_cpus(numbers: Sequence[int]) -> tuple[str, ...]:
    count = max(numbers) + 1
    cpu = tf.config.list_physical_devices("CPU")[0]
    # Else they are already configured.
    if len(tf.config.get_logical_device_configuration(cpu) or ()) < count:
        cores, threading = len(os.sched_getaffinity(0)), tf.config.threading
        try:
            # Each device may sleep or compute in its own thread, while other threads pass the work
            # on.
            threading.set_inter_op_parallelism_threads(2 * count + 2)
            # Several devices share the cores; a single one may use them all.
            threading.set_intra_op_parallelism_threads(max(1, cores // count))
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * count
            )
        except RuntimeError as error:
            raise used_before(f"has fewer CPU devices than {count}") from error
    return tuple(f"CPU:{number}" for number in numbers)


def used_before(how: str) -> EnvironmentFault:
    """The error of a process whose TensorFlow, which is set up only once, lacks what a
    split needs.
    """
    row = known_error("used-before")
    return EnvironmentFault(f"{row.message}, and {how}", cause=row.cause, remedy=row.remedy)


def _set_up_gpus(devices: Sequence[Device], *, joins: bool) -> tuple[str, ...]:
    physical = tf.config.list_physical_devices("GPU")
    if not physical:
        row = known_error("cuda-library-missing")
        raise EnvironmentFault(
            f"TensorFlow {tf.__version__} sees no GPU, though the driver shows "
            f"{_names(devices)}{_missing_libraries()}",
            cause=row.cause,
            remedy=f"{row.remedy}; the log says which",
        )
    try:
        _grow(physical)
    except (RuntimeError, ValueError) as error:
        if not _grows(physical):
            fault = used_before("took all of the GPUs' memory")
            warnings.warn(f"{fault.message}: {fault.remedy} ({error})", stacklevel=2)
    # Asking which GPU is which starts TensorFlow's runtime, too early to join a cluster: there a
    # process has one GPU.
    numbers = [0] if joins else numbers_of(devices, _descriptions())
    missing = _left_out(devices, numbers)
    if missing:
        row = known_error("left-out")
        left_out = f"TensorFlow {tf.__version__} leaves out {_names(missing)}"
        raise EnvironmentFault(left_out, cause=row.cause, remedy=row.remedy)
    return tuple(f"GPU:{number}" for number in numbers)


def _grow(physical: Sequence[Any]) -> None:
    for gpu in physical:
        tf.config.experimental.set_memory_growth(gpu, True)


def _grows(physical: Sequence[Any]) -> bool:
    return all(map(tf.config.experimental.get_memory_growth, physical))


def _missing_libraries() -> str:
    """`; these libraries can't be loaded: libcudnn.so.9`, of those that TensorFlow's build wants;
    empty if all can.
    """
    missing = [name for name, library in wanted_libraries().items() if isinstance(library, str)]
    return f"; these libraries can't be loaded: {', '.join(missing)}" if missing else ""


def wanted_libraries() -> dict[str, Any]:
    """The CUDA libraries that TensorFlow's build wants, by file name: loaded, or the reason why it
    can't be.
    """
    build, packages = tf.sysconfig.get_build_info(), Path(tf.__file__).parents[1]
    names = cuda_libraries.wanted(build.get("cuda_version"), build.get("cudnn_version"))
    return {name: cuda_libraries.load(name, packages, os.environ) for name in names}


def survey(devices: Sequence[Device]) -> tuple[dict[str, str], bool | None]:
    """The reason for each GPU that TensorFlow can't use here, by UUID; and whether its GPUs take
    memory as needed.
    """
    physical, this = tf.config.list_physical_devices("GPU"), f"TensorFlow {tf.__version__}"
    if not physical:
        return {
            device.uuid: f"{this} sees no GPU: a CUDA library is missing" for device in devices
        }, None
    _grow(physical)
    missing = _left_out(devices, numbers_of(devices, _descriptions()))
    return {device.uuid: f"{this} leaves it out" for device in missing}, _grows(physical)


def _local_gpus() -> list[Any]:
    """TensorFlow's own descriptions of its GPUs, in its order: the only way to a bus id or a memory
    limit.
    """
    from tensorflow.python.client import device_lib

    tf.config.list_logical_devices("GPU")  # first sets them up in the way that this process wants
    return [device for device in device_lib.list_local_devices() if device.device_type == "GPU"]


def _descriptions() -> list[str]:
    return [gpu.physical_device_desc for gpu in _local_gpus()]


def numbers_of(devices: Sequence[Device], descriptions: Sequence[str]) -> list[int | None]:
    """TensorFlow's number of each device by what it says of its GPUs, None for a device that it
    leaves out.

    Devices are found by their PCI bus ids; if one is unknown, by their order in
    CUDA_VISIBLE_DEVICES.
    """
    bus_ids = [found and found[1].lower() for found in map(_BUS_ID.search, descriptions)]
    if None in bus_ids or any(device.bus_id is None for device in devices):
        return [number if number < len(bus_ids) else None for number in range(len(devices))]
    numbers = {bus_id: number for number, bus_id in enumerate(bus_ids)}
    return [numbers.get((device.bus_id or "").lower()) for device in devices]


def _left_out(devices: Sequence[Device], numbers: Sequence[int | None]) -> list[Device]:
    return [device for device, number in zip(devices, numbers, strict=True) if number is None]


def _names(devices: Sequence[Device]) -> str:
    return ", ".join(f"{d.label} ({d.name}, {d.uuid})" for d in devices)


# TensorFlow numbers each strategy's groups of collective operations from 1, and takes two groups
# with the same number in a process for one, even with other devices and sizes. These numbers are
# far from those of a user's own strategies.
_group_numbers = itertools.count(1 << 20)


class _Strategy(tf.distribute.MirroredStrategy):  # type: ignore[misc]
    """MirroredStrategy, with a collective group of its own."""

    def __init__(self, *arguments: Any) -> None:
        self._collective_key_base = next(_group_numbers)
        super().__init__(*arguments)


@functools.cache
def build_strategy(
    names: tuple[str, ...], all_reduce: AllReduce, cluster: Cluster | None = None
) -> Any:
    """The process's only MirroredStrategy on these devices, so that a model built for one split can
    train with another.

    `auto` is TensorFlow's own choice: NCCL for GPUs, a ring for CPUs. In a cluster it is the whole
    cluster's strategy.
    """
    if cluster is not None:
        return hosts.join(cluster, names[0].partition(":")[0], all_reduce)
    choices: dict[str, Any] = {
        "auto": lambda: None,
        "ring": lambda: None,  # of several hosts, of which only one has samples
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
        "one-device": tf.distribute.ReductionToOneDevice,
    }
    return _Strategy(list(names), choices[all_reduce]())


def memory_limits_bytes(devices: Sequence[Device], names: Sequence[str]) -> tuple[int | None, ...]:
    """Bytes that TensorFlow's allocator may take of each device, None without a limit; a simulated
    one's memory.
    """
    return tuple(
        device.profile.memory if device.profile else memory_limit_bytes(name)
        for device, name in zip(devices, names, strict=True)
    )


def memory_limit_bytes(name: str) -> int | None:
    """Bytes that TensorFlow's allocator may take of a device; None if it has no limit
    of its own.
    """
    if name.startswith("GPU"):
        return next(
            (int(gpu.memory_limit) for gpu in _local_gpus() if gpu.name == f"/device:{name}"), None
        )
    limit = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "")
    limited = (
        os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true") and limit.isdigit()
    )
    return int(limit) << 20 if limited else None


def memory_peaks(
    devices: Sequence[Device], names: Sequence[str], by_profile: Sequence[int | None]
) -> tuple[int | None, ...]:
    """The most bytes that TensorFlow held on each device since the last call; a simulated one's are
    given, else None.

    None if its allocator does not say. All CPU devices of a process share one, so several have no
    peaks of their own.
    """
    each = zip(devices, names, by_profile, strict=True)
    are_one = names[0].startswith("CPU") and len(names) > 1
    return tuple(given if one.profile or are_one else _peak(name) for one, name, given in each)


def _peak(name: str) -> int | None:
    peak = memory_bytes(name, "peak") or None
    reset_memory_peak(name)
    return peak


def memory_bytes(name: str, what: str) -> int | None:
    """The `current` or `peak` bytes on a device; None if its allocator does not say."""
    with contextlib.suppress(ValueError):
        return int(tf.config.experimental.get_memory_info(name)[what])
    return None


def reset_memory_peak(name: str) -> None:
    """Starts a new peak, if the allocator keeps one."""
    with contextlib.suppress(ValueError):
        tf.config.experimental.reset_memory_stats(name)


def rounds(seconds: float, at_least: int, goes_on: Callable[[bool], bool] = bool) -> Iterator[None]:
    """Yields until `seconds` are over and `at_least` rounds are made; `goes_on` gives all processes
    the same answer.
    """
    ends, made = time.perf_counter() + seconds, 0
    while made < at_least or (seconds and goes_on(time.perf_counter() < ends)):
        yield
        made += 1


def wait_for(names: Sequence[str]) -> None:
    """Waits until every device has done all that was queued on it."""
    marks = []
    for name in names:
        with tf.device(name):
            marks.append(tf.zeros(()) + 1.0)
    for mark in marks:
        mark.numpy()  # the copy to the host waits for the device's stream
