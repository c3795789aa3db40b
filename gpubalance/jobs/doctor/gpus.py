"""Checks of the host's memory and disk, of the driver, and of how each GPU is set and doing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from gpubalance.devices.health import Health, nvidia_cards, read_health
from gpubalance.devices.nvml import Gpu, Reading
from gpubalance.jobs.doctor.check import check, explained, guarded, ok, skipped
from gpubalance.numbers.units import NOT_AVAILABLE, format_bytes
from gpubalance.remedies import known_error, match
from gpubalance.results.checkup import Check, Status
from gpubalance.system.deadlines import ANSWERS_WITHIN_S, within, within_or
from gpubalance.system.state import current_folder, state_folder

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
