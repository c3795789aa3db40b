"""Checks that only read: host memory and disk, the driver, each GPU, and TensorFlow's build."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from gpubalance.devices.health import Health, nvidia_cards, read_health
from gpubalance.devices.nvml import Gpu, Reading
from gpubalance.jobs.doctor.check import (
    check,
    explained,
    guarded,
    ok,
    remedy_of,
    skipped,
)
from gpubalance.numbers.units import NOT_AVAILABLE, format_bytes
from gpubalance.remedies import known_error, match
from gpubalance.results.checkup import Check, Status
from gpubalance.system.deadlines import ANSWERS_WITHIN_S, within, within_or
from gpubalance.system.state import current_folder, state_folder
from gpubalance.system.versions import numbers, too_old
from gpubalance.workers.messages import Inspect, Inspected
from gpubalance.workers.worker_group import WorkerGroup

# Finds the free bytes, and in which folder.
Look = Callable[[], tuple[int, Path | None]]

_GIB = 2**30
# NCCL moves gradients through it where GPUs can't reach each other; Docker gives 64 MiB.
_SHARED = Path("/dev/shm")  # noqa: S108  (asked for its size, nothing is written)
_CGROUP = Path("/sys/fs/cgroup")
_OFTEN_HARMLESS = ("hidden", "mig")  # somebody may have chosen it
_FINE = ("ok", "skipped")


class _Room(NamedTuple):
    """Below how many free bytes it fails, or is a warning; what is said then; the remedy."""

    minimum: int
    enough: int
    why: str
    remedy: str


_ROOM = {
    "host-memory": _Room(
        _GIB,
        4 * _GIB,
        ". gpubalance allows 4 GiB for a worker with TensorFlow and CUDA",
        "close other programs: `ps aux --sort=-rss | head` shows the largest",
    ),
    # Logs, probes, journals are small.
    "disk": _Room(
        _GIB // 10, _GIB, "", "make room there: `du -xh {} | sort -h | tail`"
    ),
    "shared-memory": _Room(
        0,
        _GIB,
        '. NCCL may need more, and then reports "unhandled system error"',
        known_error("nccl-system").remedy,
    ),
}


def host_checks(*, gpus: int) -> Iterator[Check]:
    """The checks of memory and disk, and of shared memory if several GPUs may need it."""
    looks: dict[str, Look] = {
        "host-memory": lambda: (available_memory(), None),
        "disk": _min_free,
    }
    if gpus > 1 and _SHARED.is_dir():
        looks["shared-memory"] = lambda: _free(_SHARED)
    for code, look in looks.items():
        yield from guarded(code, looked(code, look))


def looked(code: str, look: Look, seconds: float = ANSWERS_WITHIN_S) -> Iterator[Check]:
    """The check of the free bytes that `look` finds. Raises what it does, and if it hangs."""
    free, folder = within(look, seconds)
    room = _ROOM[code]
    detail = f"{format_bytes(free)} free"
    if folder is not None:
        detail += f" in {folder}"
    if free >= room.enough:
        yield ok(code, detail)
    else:
        status: Status = "failure" if free < room.minimum else "warning"
        yield check(code, status, f"{detail}{room.why}", room.remedy.format(folder))


def available_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes that programs here can still take.

    The host's, or what is left of the container's limit if that is less.
    """
    free = int(psutil.virtual_memory().available)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = (cgroup / "memory.current").read_text().strip()
    except OSError:
        return free
    if not limit.isdigit():  # none
        return free
    return min(free, max(0, int(limit) - int(used)))


def _free(folder: Path) -> tuple[int, Path]:
    return shutil.disk_usage(folder).free, folder


def _min_free() -> tuple[int, Path]:
    """That of the folders of results and logs which has the least."""
    folders = [current_folder(), state_folder("logs"), Path(tempfile.gettempdir())]
    return min(_free(folder) for folder in folders)


def driver_checks(reading: Reading) -> Iterator[Check]:
    """The checks of the driver and NVML.

    NVML's version is CUDA's major one, then the driver's: 12.550.54.14.
    """
    if reading.problem is not None:
        problem = reading.problem
        cards = nvidia_cards()
        if cards:
            problem += f" (there is a card at {', '.join(cards)})"
        yield explained("driver", reading.code or "nvml-broken", problem)
        return
    driver = reading.driver_version
    detail = driver or f"version {NOT_AVAILABLE}"
    if reading.cuda_driver_version:
        detail += f", for CUDA up to {reading.cuda_driver_version}"
    yield ok("driver", detail)
    nvml = reading.nvml_version
    if nvml and driver and nvml.partition(".")[2] != driver:
        detail = f"{nvml} does not belong to driver {driver}"
        yield explained("nvml", "driver-mismatch", detail, "warning")
    else:
        gpus = "1 GPU"
        if len(reading.gpus) != 1:
            gpus = f"{len(reading.gpus)} GPUs"
        yield ok("nvml", f"{nvml or NOT_AVAILABLE}, {gpus}")


def gpu_checks(gpus: Sequence[Gpu]) -> list[Check]:
    """The checks of each topic on each GPU, its faults first.

    GPUs with the same result share a line.
    """
    labels: dict[Check, list[str]] = {}
    for gpu in gpus:
        for outcome in _checks(gpu):
            labels.setdefault(outcome, []).append(f"GPU:{gpu.index}")
    topics = list(dict.fromkeys(outcome.code for outcome in labels))
    checks = []
    for outcome in sorted(
        labels, key=lambda outcome: (topics.index(outcome.code), _is_fine(outcome))
    ):
        where = ", ".join(labels[outcome])
        detail = f"{where} {outcome.detail}"
        if _is_fine(outcome):
            detail = f"{outcome.detail} ({where})"
        checks.append(outcome.model_copy(update={"detail": detail}))
    return checks


def _is_fine(outcome: Check) -> bool:
    return outcome.status in _FINE


def _checks(gpu: Gpu) -> Iterator[Check]:
    if gpu.unusable is None:
        yield ok("gpu", "can be used")
    else:
        row = match(gpu.unusable)
        status: Status = "failure"
        remedy = "see what `nvidia-smi` says about it"
        if row:
            remedy = row.remedy.replace("-i N", f"-i {gpu.index}")
            if row.code in _OFTEN_HARMLESS:
                status = "warning"
        yield check("gpu", status, f"can't be used: {gpu.unusable}", remedy)
    if not gpu.uuid.startswith("unknown-"):  # it answers
        health = within_or(None, lambda: read_health(gpu.uuid)) or Health()
        yield _processes(gpu)
        yield from _settings(gpu, health)
        yield _memory_errors(gpu, health)


def _processes(gpu: Gpu) -> Check:
    if gpu.processes is None:
        return _unknown("processes")
    if not gpu.processes:
        return ok("processes", "none")
    held = []
    for process in gpu.processes:
        held.append(f"PID {process.pid} holds {format_bytes(process.memory_bytes)}")
    return check(
        "processes",
        "warning",
        f"is shared: {', '.join(held)}",
        "`gpubalance devices` lists them. End those that you do not need, and keep "
        f"memory free for the others: {_margin(gpu)}",
    )


def _settings(gpu: Gpu, health: Health) -> Iterator[Check]:
    """The checks of what slows a GPU down that is whole."""
    smi = f"nvidia-smi -i {gpu.index}"
    yield _judged(
        "display",
        health.display,
        "none",
        "drives a display, which takes memory and time; its watchdog ends long kernels",
        "connect the display to another GPU, or `sudo systemctl isolate "
        f"multi-user.target`, or keep memory free for it: {_margin(gpu)}",
    )
    is_off = None
    if health.persistence is not None:
        is_off = not health.persistence
    yield _judged(
        "persistence",
        is_off,
        "on",
        "has persistence mode off: the driver restarts the GPU for each process, "
        "which takes seconds",
        f"sudo {smi} -pm 1",
    )
    cap = health.power_cap_w or 0.0
    default = health.power_default_w or 0.0
    is_capped = None
    if cap:
        is_capped = cap < default
    yield _judged(
        "power-cap",
        is_capped,
        f"{cap:.0f} W",
        f"is capped at {cap:.0f} W of {default:.0f} W: slower, but perhaps on purpose",
        f"sudo {smi} -pl {default:.0f}",
    )
    reasons = ", ".join(health.throttle_reasons or ())
    remedy = "check its power cables and supply"
    if "thermal" in reasons:
        remedy = "improve cooling: fans, dust, room between the cards"
    yield _judged(
        "throttling",
        health.throttle_reasons,
        "none now",
        f"is throttled now: {reasons}",
        f"{remedy}. `{smi} -q -d PERFORMANCE,TEMPERATURE,POWER` says more",
    )


def _margin(gpu: Gpu) -> str:
    """An example of the option of probe, plan, balance and layers."""
    return f"`gpubalance balance --margin {gpu.index}=1GiB`"


def _judged(code: str, fault: object, good: str, bad: str, remedy: str) -> Check:
    """A warning if there is a `fault`; skipped if that is None, as NVML does not say."""
    if fault is None:
        return _unknown(code)
    if fault:
        return check(code, "warning", bad, remedy)
    return ok(code, good)


def _unknown(code: str) -> Check:
    return skipped(code, "the driver does not report it")


def _memory_errors(gpu: Gpu, health: Health) -> Check:
    if health.ecc_uncorrected is None:
        return skipped("ecc", "the GPU has no ECC, or ECC is off")
    if health.ecc_uncorrected:
        errors = f"has {health.ecc_uncorrected} uncorrected ECC errors"
        return check(
            "ecc",
            "failure",
            f"{errors} since the driver was loaded: results may be wrong",
            f"reboot. `nvidia-smi -i {gpu.index} -q -d ECC,ROW_REMAPPER` shows "
            "whether errors continue",
        )
    detail = "no uncorrected errors"
    if health.ecc_corrected:
        detail += f", {health.ecc_corrected} corrected"
    return ok("ecc", detail)


_CUDNN_WITHOUT_OLD = (9, 11)
_OLD_BEFORE = (7, 5)
# Where the driver should compile TensorFlow's PTX, and by report does not: tensorflow issues 99592,
# 101746, 111958.
_PTX_FAILS_FROM = (12, 0)
# https://github.com/tensorflow/tensorflow/issues/78784: 525.78.01, with TensorFlow 2.18.
_CRASHING_BRANCH = 525
_CRASHES_FROM = (2, 18)

Version = tuple[int, ...]


def inspect(worker_group: WorkerGroup) -> Inspected:
    """What a worker says of TensorFlow and its libraries."""
    with worker_group.worker() as worker:
        return worker.ask(Inspect(), Inspected)


def software_checks(
    inspected: Inspected, reading: Reading | None, gpus: Sequence[Gpu]
) -> Iterator[Check]:
    """The checks of TensorFlow, and of what it needs for GPUs.

    The latter if there are any and it is built for them.
    """
    built = "built without CUDA"
    if inspected.cuda:
        built = f"built for CUDA {inspected.cuda} and cuDNN {inspected.cudnn}"
    detail = f"{inspected.tensorflow} with Keras {inspected.keras}, {built}"
    if gpus and inspected.cuda is None:
        remedy = "pip install --force-reinstall '.[cuda]' in gpubalance's checkout"
        yield check("tensorflow", "failure", detail, remedy)
        return
    yield ok("tensorflow", detail)
    if reading is not None and gpus:
        yield driver_for_build(inspected, reading)
        yield libraries(inspected)
        yield cudnn(inspected, gpus)
        yield capabilities(inspected, gpus)


def driver_for_build(inspected: Inspected, reading: Reading) -> Check:
    """The check of the driver's CUDA version against the one that TensorFlow is built for."""
    code = "tensorflow-driver"
    serves = reading.cuda_driver_version
    if not serves:
        return skipped(
            code, "the driver does not report which CUDA version it supports"
        )
    driver = reading.driver_version
    problem = too_old(driver, serves, inspected.cuda)
    if problem:
        return explained(code, "driver-too-old", problem)
    if (
        numbers(driver)[:1] == (_CRASHING_BRANCH,)
        and numbers(inspected.tensorflow) >= _CRASHES_FROM
    ):
        crashes = (
            f"TensorFlow {inspected.tensorflow} is reported to crash with it "
            "(TensorFlow issue 78784)"
        )
        detail = (
            f"driver {driver} is new enough for CUDA {inspected.cuda}, but {crashes}"
        )
        return check(code, "warning", detail, remedy_of("driver-too-old"))
    return ok(
        code,
        f"{inspected.cuda} is supported by driver {driver or 'of unknown version'}",
    )


def libraries(inspected: Inspected) -> Check:
    """The check that each CUDA library which TensorFlow wants can be loaded."""
    problems = {}
    for name, problem in inspected.libraries.items():
        if problem is not None:
            problems[name] = problem
    if not problems:
        return ok("cuda-libraries", f"all {len(inspected.libraries)} load")
    detail = f"can't be loaded: {', '.join(problems)}"
    for name, problem in problems.items():
        if f"{name}: cannot open" not in problem:  # it is there, and broken
            detail += f" ({problem})"
            break
    return explained("cuda-libraries", "cuda-library-missing", detail)


def cudnn(inspected: Inspected, gpus: Sequence[Gpu]) -> Check:
    """The check of the loaded cuDNN against TensorFlow's build and each GPU's capability."""
    loaded = numbers(inspected.cudnn_loaded)
    if not loaded:
        return skipped("cudnn", "cuDNN was not loaded")
    if loaded[:2] < numbers(inspected.cudnn)[:2]:
        where = f" from {inspected.cudnn_file}" if inspected.cudnn_file else ""
        of_loaded = f"{inspected.cudnn_loaded} was loaded{where}"
        detail = f"{of_loaded}, TensorFlow is built for {inspected.cudnn}"
        return explained("cudnn", "cudnn-too-old", detail)
    old = [gpu for gpu in gpus if (0,) < numbers(gpu.compute_capability) < _OLD_BEFORE]
    if old and loaded[:2] >= _CUDNN_WITHOUT_OLD:
        detail = f"{inspected.cudnn_loaded} has no code for {_with_capability(old)}"
        return explained("cudnn", "cudnn-without-this-gpu", detail)
    return ok("cudnn", f"{inspected.cudnn_loaded}, which has code for these GPUs")


def capabilities(inspected: Inspected, gpus: Sequence[Gpu]) -> Check:
    """The check that the build has code for each GPU, or PTX that the driver compiles for it.

    Code (`sm_60`) runs on GPUs of its major version that are not older, PTX (`compute_90`) on every
    newer one too.
    """
    code = "compute-capability"
    known = [gpu for gpu in gpus if gpu.compute_capability]
    if not known or not inspected.capabilities:
        return skipped(code, "the driver does not report the compute capability")
    built_for = _versions(inspected.capabilities, "sm|compute")
    slow = [gpu for gpu in known if not _has_code(gpu, built_for)]
    oldest_ptx = min(_versions(inspected.capabilities, "compute"), default=None)
    without = [
        gpu for gpu in slow if oldest_ptx is None or _capability(gpu) < oldest_ptx
    ]
    if without:
        built = ", ".join(inspected.capabilities)
        detail = f"none for {_with_capability(without)}. It is built for {built}"
        return explained(code, "capability-too-old", detail)
    too_new = [gpu for gpu in slow if _capability(gpu) >= _PTX_FAILS_FROM]
    if too_new:
        return explained(code, "gpu-too-new", f"none for {_with_capability(too_new)}")
    if slow:
        compiles = "the driver compiles it at the first start, which takes minutes"
        return check(
            code,
            "warning",
            f"none for {_with_capability(slow)}: {compiles}",
            "wait. `export CUDA_CACHE_MAXSIZE=4294967296` makes the cache large enough "
            "for all compiled code, so that later starts are fast",
        )
    return ok(code, f"for {_with_capability(known)}")


def _has_code(gpu: Gpu, built_for: Sequence[Version]) -> bool:
    own = _capability(gpu)
    return any(version[:1] == own[:1] and version <= own for version in built_for)


def _capability(gpu: Gpu) -> Version:
    return numbers(gpu.compute_capability)


def _versions(capabilities: Sequence[str], kinds: str) -> list[Version]:
    versions: list[Version] = []
    for text in capabilities:
        parts = re.fullmatch(rf"(?:{kinds})_(\d+)(\d)[a-z]?", text)
        if parts:
            versions.append((int(parts[1]), int(parts[2])))
    return versions


def _with_capability(gpus: Sequence[Gpu]) -> str:
    texts = [
        f"GPU:{gpu.index} (compute capability {gpu.compute_capability})" for gpu in gpus
    ]
    return ", ".join(texts)
