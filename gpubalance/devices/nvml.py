"""Reads the machine's GPUs through NVML: what it does not say is null, never 0. Changes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from gpubalance.remedies import known_error
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.text import clean

_BUS_ID = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE
)


class GpuProcess(Record):
    """Another process on a GPU. In a container the driver gives the host's PIDs."""

    pid: int | None
    name: str | None
    memory_bytes: int | None


class MigSlice(Record):
    uuid: str
    name: str | None
    memory_bytes: int | None


class Gpu(Record):
    """One GPU; what NVML does not say is null.

    `index` is NVML's, in PCI bus order, unlike CUDA's default. `unusable` is the reason why the GPU
    as a whole can't be used.
    """

    index: int
    uuid: str
    bus_id: str | None = None
    name: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    mig: bool = False
    mig_slices: tuple[MigSlice, ...] = ()
    unusable: str | None = None

    @property
    def device(self) -> Device:
        """The whole GPU, even if it can't be used."""
        return self._device(self.uuid, self.name, self.memory_bytes)

    @property
    def devices(self) -> tuple[Device, ...]:
        """What can be measured alone: the GPU, its MIG slices (under its own index), or nothing."""
        if not self.mig:
            return () if self.unusable else (self.device,)
        slices = self.mig_slices
        return tuple(
            self._device(own.uuid, own.name, own.memory_bytes) for own in slices
        )

    def _device(self, uuid: str, name: str | None, memory_bytes: int | None) -> Device:
        return Device(
            index=self.index,
            uuid=uuid,
            name=name or "unknown GPU",
            memory_bytes=memory_bytes,
            simulated=False,
            bus_id=self.bus_id,
        )


class Reading(Record):
    """The GPUs, or why there are none.

    That is the `problem`, its `remedy`, and its `code` in the table of known errors.
    """

    driver_version: str | None = None
    cuda_driver_version: str | None = None
    nvml_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    problem: str | None = None
    remedy: str | None = None
    code: str | None = None


def normal_bus_id(text: str) -> str | None:
    """`0000:01:00.0`, as Linux and TensorFlow write it, for a bus id in another form.

    NVML writes `00000000:01:00.0`, lspci `01:00.0`.
    """
    match = _BUS_ID.fullmatch(text)
    if not match:
        return None
    domain, bus, slot, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{slot}.{function or 0}".lower()


_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_UNKNOWN = "of unknown version"
_NO_PID = 0xFFFFFFFF  # what some drivers list for a process that they cannot name
# NVML's numbers of errors that have a row in the table of known ones
_CODES = {
    4: "no-permission",
    9: "driver-not-loaded",
    12: "no-driver",
    15: "gpu-lost",
    16: "gpu-needs-reset",
    18: "driver-mismatch",
}
_ANSWERS_NOTHING = ("gpu-lost", "gpu-needs-reset")
_T = TypeVar("_T")


@contextmanager
def _started() -> Iterator[Any]:
    """Starts NVML and gives pynvml. Raises NVMLError if NVML does not start."""
    import pynvml as nvml  # here, as most commands never need it

    nvml.nvmlInit()
    try:
        yield nvml
    finally:
        with suppress(nvml.NVMLError):
            # NVML counts its users: others in this process keep it
            nvml.nvmlShutdown()


def read(*, gpus: bool = True) -> Reading:
    """Reads the driver's versions and, with `gpus`, each GPU once.

    A fault of driver, library or GPU is in the result, never raised.
    """
    import pynvml

    try:
        with _started() as nvml:
            versions = _versions(nvml)
            if not gpus:
                return versions
            count = nvml.nvmlDeviceGetCount()
            if not count:
                return without("no-gpu-seen", versions=versions)
            listed = tuple(_gpu(nvml, index) for index in range(count))
            return versions.model_copy(update={"gpus": listed})
    except pynvml.NVMLError as error:
        return _not_working(pynvml, error)


class Card:
    """A GPU or MIG slice that NVML knows by this `handle`; `nvml` is pynvml."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self._handle = handle

    def ask(self, names: str, *arguments: Any) -> Any:
        """What the first of these calls of NVML says, `nvmlDeviceGet…`.

        None if each fails, or pynvml has none. Raises NVMLError only for a GPU that no longer
        answers anything.
        """
        for name in names.split():
            call = getattr(self.nvml, f"nvmlDeviceGet{name}", None)
            if call is None:
                continue
            answer = _ask(self.nvml, call, self._handle, *arguments)
            if answer is not None:
                return answer
        return None

    def text(self, name: str) -> str | None:
        """The same, made safe to show; None for an empty one."""
        return _text(self.ask(name))


def with_gpu(
    uuid: str,
    use: Callable[[Card], _T],
    ended: Callable[[str], None] = lambda _: None,
) -> _T | None:
    """What `use` returns for the GPU or MIG slice with that UUID.

    None if NVML does not start, does not know the UUID, or loses the GPU meanwhile. If it answers
    nothing any more, as it is lost or must be reset, `ended` gets the code of that known error.
    """
    import pynvml

    try:
        with _started() as nvml:
            return use(Card(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid)))
    except pynvml.NVMLError as error:
        code = _CODES.get(error.value)
        if code in _ANSWERS_NOTHING:
            ended(code)
        return None


def _ask(nvml: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if _CODES.get(error.value) in _ANSWERS_NOTHING:
            raise
        return None
    except UnicodeDecodeError as error:
        # NVML's buffer cut a name within a character
        return error.object


def kernel_module_version(text: str) -> str | None:
    """The loaded driver's version in the text of /proc/driver/nvidia/version.

    The kernel module is the closed or the open one.
    """
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    if match is None:
        return None
    return match[1]


def _versions(nvml: Any) -> Reading:
    cuda = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    cuda_version = None
    if cuda:
        cuda_version = f"{cuda // 1000}.{cuda % 1000 // 10}"
    return Reading(
        driver_version=_text(_ask(nvml, nvml.nvmlSystemGetDriverVersion)),
        cuda_driver_version=cuda_version,
        nvml_version=_text(_ask(nvml, nvml.nvmlSystemGetNVMLVersion)),
    )


def without(code: str, problem: str = "", versions: Reading | None = None) -> Reading:
    """A reading without GPUs, and why.

    The `problem` is given if it is more than the row of known errors says.
    """
    row = known_error(code)
    why = {"problem": problem or row.message, "remedy": row.remedy, "code": code}
    return (versions or Reading()).model_copy(update=why)


def _not_working(nvml: Any, error: Any) -> Reading:
    # Known without a driver too, unless there is no library
    version = _text(_ask(nvml, nvml.nvmlSystemGetNVMLVersion))
    # NVML's version is CUDA's major version, then the driver version that it belongs to:
    # 12.550.54.14
    library = (version or "").partition(".")[2] or _UNKNOWN
    code = _CODES.get(error.value, "nvml-broken")
    message = known_error(code).message
    problem = {
        "no-driver": f"no NVIDIA driver: {message}",
        "driver-not-loaded": f"{message} (its library is {library})",
        "driver-mismatch": (
            f"the loaded NVIDIA driver is {_loaded_version()}, but its library is "
            f"{library}"
        ),
        "nvml-broken": f"{message}: {error}",
    }.get(code, message)
    return without(code, problem, Reading(nvml_version=version))


def _loaded_version() -> str:
    try:
        return (
            kernel_module_version(_KERNEL_MODULE.read_text(errors="replace"))
            or _UNKNOWN
        )
    except OSError:
        return _UNKNOWN


def _gpu(nvml: Any, index: int) -> Gpu:
    """Reads one GPU. If it is lost meanwhile, what it said before is kept."""
    facts: dict[str, Any] = {"uuid": None}
    try:
        for field, value in _facts(Card(nvml, nvml.nvmlDeviceGetHandleByIndex(index))):
            facts[field] = value
        if not facts["uuid"]:
            facts["unusable"] = "its UUID cannot be read"
    except nvml.NVMLError as error:
        facts["unusable"] = f"NVML cannot open it: {error}"
        if error.value in _CODES:
            facts["unusable"] = _reason(_CODES[error.value])
    facts["uuid"] = facts["uuid"] or f"unknown-{index}"
    return Gpu(index=index, **facts)


def _reason(code: str) -> str:
    row = known_error(code)
    return f"{row.message}: {row.cause}"


def _facts(card: Card) -> Iterator[tuple[str, Any]]:
    """Reads a Gpu's fields one by one, so that those before a fault are kept."""
    yield "uuid", card.text("UUID")
    yield "name", card.text("Name")
    pci = card.ask("PciInfo_v3")
    if pci:
        bus_id = _text(_ask(card.nvml, lambda: pci.busId))  # decoded on access
        yield "bus_id", normal_bus_id(bus_id or "")
    capability = card.ask("CudaComputeCapability")
    if capability:
        yield "compute_capability", ".".join(map(str, capability))
    memory = card.ask("MemoryInfo")
    if memory and memory.total:
        yield "memory_bytes", memory.total
        yield "memory_free_bytes", memory.free
    mode = card.ask("MigMode")
    if mode and mode[0]:
        yield "mig", True
        yield "unusable", _reason("mig")
        yield "mig_slices", tuple(_slices(card))
    yield "processes", _processes(card)


def _slices(card: Card) -> Iterator[MigSlice]:
    for index in range(card.ask("MaxMigDeviceCount") or 0):
        handle = card.ask("MigDeviceHandleByIndex", index)
        if not handle:
            continue
        piece = Card(card.nvml, handle)
        uuid = piece.text("UUID")
        if uuid:
            memory = piece.ask("MemoryInfo")
            memory_bytes = None
            if memory and memory.total:
                memory_bytes = memory.total
            yield MigSlice(
                uuid=uuid, name=piece.text("Name"), memory_bytes=memory_bytes
            )


def _processes(card: Card) -> tuple[GpuProcess, ...] | None:
    """Other processes that compute or draw on the GPU; None if the driver lists neither kind."""
    # Drivers before 510 know only the second version of the call
    compute = card.ask("ComputeRunningProcesses_v3 ComputeRunningProcesses_v2")
    graphics = card.ask("GraphicsRunningProcesses_v3 GraphicsRunningProcesses_v2")
    if compute is None and graphics is None:
        return None
    sizes: dict[int, int | None] = {}
    for process in list(compute or ()) + list(graphics or ()):
        if process.pid in (0, _NO_PID, os.getpid()):
            continue
        # A process that does both is listed twice, each time with its whole memory
        size = process.usedGpuMemory
        before = sizes.setdefault(process.pid, None)
        if size is not None:
            sizes[process.pid] = max(size, before or 0)
    processes = []
    for pid, size in sorted(sizes.items()):
        name = _text(_ask(card.nvml, card.nvml.nvmlSystemGetProcessName, pid))
        processes.append(GpuProcess(pid=pid, name=name, memory_bytes=size))
    return tuple(processes)


def _text(answer: Any) -> str | None:
    if isinstance(answer, bytes):
        answer = answer.decode(errors="replace")
    return clean(answer or "") or None
