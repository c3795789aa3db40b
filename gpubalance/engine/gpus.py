"""Sets TensorFlow up for GPUs: its CUDA libraries, which GPU a device is, why one is missing."""

from __future__ import annotations

import ctypes
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from gpubalance.engine.failures import used_before
from gpubalance.errors import EnvironmentFault
from gpubalance.remedies import known_error
from gpubalance.settings.device import Device
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
