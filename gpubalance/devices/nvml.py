"""The machine's NVIDIA GPUs, read through NVML. Nothing is ever set."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from gpubalance.devices.gpus import Gpu, MigSlice, Process, Reading, normal_bus_id
from gpubalance.remedies import known
from gpubalance.text import clean

_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_NO_PID = 0xFFFFFFFF  # what some drivers list instead of a process they cannot name
_T = TypeVar("_T")
_MIG = f"{known('mig').message}: {known('mig').cause}"


@contextmanager
def _started() -> Iterator[Any]:
    """pynvml, with NVML started. Raises NVMLError where it does not start."""
    import pynvml as nvml  # here, as most commands never need it

    nvml.nvmlInit()
    try:
        yield nvml
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()  # NVML counts its users: others in this process go on


def read() -> Reading:
    """Reads every GPU once. A fault of driver, library or GPU is told in the result, never raised."""
    return _read(_gpus)


def read_driver() -> Reading:
    """The driver's versions or its problem, as `read` tells them; no GPU is opened."""
    return _read(lambda nvml: Reading(**_versions(nvml)))


def _read(look: Callable[[Any], Reading]) -> Reading:
    import pynvml

    try:
        with _started() as nvml:
            return look(nvml)
    except pynvml.NVMLError as error:
        return _not_started(pynvml, error)


def with_gpu(uuid: str, use: Callable[[Any, Any], _T]) -> _T | None:
    """What `use(pynvml, handle)` returns of the GPU or MIG slice with that UUID; it may call `ask`.

    None where NVML does not start, does not know the UUID, or loses the GPU on the way.
    """
    import pynvml

    try:
        with _started() as nvml:
            return use(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
    except pynvml.NVMLError:
        return None


def ask(nvml: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """NVML's answer; None where it has none. Only a GPU that answers nothing more raises NVMLError."""
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
            raise
        return None
    except UnicodeDecodeError as error:  # a name cut by NVML's buffer within a character
        return error.object


def kernel_module_version(text: str) -> str | None:
    """The loaded driver's version, of the text of /proc/driver/nvidia/version (closed or open kernel module)."""
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    return match[1] if match else None


def _gpus(nvml: Any) -> Reading:
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return _without("nvml-broken", f"NVML cannot count the GPUs: {error}")
    found = Reading(**_versions(nvml), gpus=tuple(_gpu(nvml, index) for index in range(count)))
    return found if count else _without("no-gpu-seen", known("no-gpu-seen").message, found)


def _without(code: str, problem: str, found: Reading | None = None) -> Reading:
    """A reading without GPUs, and why."""
    why = {"problem": problem, "remedy": known(code).remedy, "code": code}
    return (found or Reading()).model_copy(update=why)


def _versions(nvml: Any) -> dict[str, str | None]:
    cuda = ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    return {
        "driver_version": _text(nvml, nvml.nvmlSystemGetDriverVersion),
        "cuda_driver_version": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "nvml_version": _text(nvml, nvml.nvmlSystemGetNVMLVersion),
    }


def _not_started(nvml: Any, error: Any) -> Reading:
    version = _text(nvml, nvml.nvmlSystemGetNVMLVersion)  # told without a driver too, unless there is no library
    # NVML's version is CUDA's major and then the driver's that it belongs to: 12.550.54.14
    library = (version or "").partition(".")[2] or "of unknown version"
    if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        code, problem = "no-driver", f"no NVIDIA driver: {known('no-driver').message}"
    elif error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        code, problem = "driver-not-loaded", f"{known('driver-not-loaded').message} (its library is {library})"
    elif error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        code = "driver-mismatch"
        problem = f"the NVIDIA driver that is loaded is {_loaded_version()}, but its library is {library}"
    elif error.value == nvml.NVML_ERROR_NO_PERMISSION:
        code, problem = "no-permission", known("no-permission").message
    else:
        code, problem = "nvml-broken", f"{known('nvml-broken').message}: {error}"
    return _without(code, problem, Reading(nvml_version=version))


def _loaded_version() -> str:
    try:
        return kernel_module_version(_KERNEL_MODULE.read_text(errors="replace")) or "of unknown version"
    except OSError:
        return "of unknown version"


def _gpu(nvml: Any, index: int) -> Gpu:
    """One GPU. One that is lost on the way keeps what it told before."""
    known: dict[str, Any] = {}
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        for field, value in _facts(nvml, handle):
            known[field] = value
        if not known["uuid"]:
            known["unusable"] = "its UUID cannot be read"
    except nvml.NVMLError as error:
        known["unusable"] = _why(nvml, error)
    known["uuid"] = known.get("uuid") or f"unknown-{index}"
    return Gpu(index=index, **known)


def _facts(nvml: Any, handle: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a Gpu one by one, so that those before a fault are kept."""
    yield "uuid", _text(nvml, nvml.nvmlDeviceGetUUID, handle)
    yield "name", _text(nvml, nvml.nvmlDeviceGetName, handle)
    bus = ask(nvml, lambda: nvml.nvmlDeviceGetPciInfo_v3(handle).busId)  # decoded when it is looked at
    yield "bus_id", normal_bus_id(_decoded(bus)) if bus else None
    capability = ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    yield "compute_capability", ".".join(map(str, capability)) if capability else None
    # Version 2 differs only in what counts as used, which is not read here
    memory = ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    yield "memory_bytes", (memory.total or None) if memory else None
    yield "memory_free_bytes", memory.free if memory and memory.total else None
    mode = ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if mode and mode[0]:
        yield "mig", True
        yield "unusable", _MIG
        yield "mig_slices", tuple(_slices(nvml, handle))
    yield "processes", _processes(nvml, handle)


def _slices(nvml: Any, handle: Any) -> Iterator[MigSlice]:
    for index in range(ask(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        piece = ask(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        uuid = _text(nvml, nvml.nvmlDeviceGetUUID, piece) if piece else None
        if uuid:
            memory = ask(nvml, nvml.nvmlDeviceGetMemoryInfo, piece)
            name = _text(nvml, nvml.nvmlDeviceGetName, piece)
            yield MigSlice(uuid=uuid, name=name, memory_bytes=(memory.total or None) if memory else None)


def _processes(nvml: Any, handle: Any) -> tuple[Process, ...] | None:
    """Other processes that compute or draw on the GPU; null where the driver tells neither kind."""
    told = [_running(nvml, kind, handle) for kind in ("Compute", "Graphics")]
    if all(processes is None for processes in told):
        return None
    memory: dict[int, int | None] = {}
    for process in (process for processes in told for process in processes or ()):
        if process.pid in (0, _NO_PID, os.getpid()):
            continue
        # One that does both is listed twice, each time with its whole memory
        sizes = [size for size in (memory.get(process.pid), process.usedGpuMemory) if size is not None]
        memory[process.pid] = max(sizes, default=None)
    return tuple(
        Process(pid=pid, name=_text(nvml, nvml.nvmlSystemGetProcessName, pid), memory_bytes=size)
        for pid, size in sorted(memory.items())
    )


def _running(nvml: Any, kind: str, handle: Any) -> Any:
    """NVML's list of processes of that kind. Drivers before 510 know only the call's second version."""
    for version in ("v3", "v2"):
        told = ask(nvml, getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_{version}"), handle)
        if told is not None:
            return told
    return None


def _text(nvml: Any, call: Callable[..., Any], *arguments: Any) -> str | None:
    text = ask(nvml, call, *arguments)
    return (clean(_decoded(text)) or None) if text is not None else None


def _decoded(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _why(nvml: Any, error: Any) -> str:
    codes = {
        nvml.NVML_ERROR_GPU_IS_LOST: "gpu-lost",
        nvml.NVML_ERROR_RESET_REQUIRED: "gpu-needs-reset",
        nvml.NVML_ERROR_NO_PERMISSION: "no-permission",
    }
    code = codes.get(error.value)
    return f"{known(code).message}: {known(code).cause}" if code else f"NVML cannot open it: {error}"
