"""Checks of the host: its memory, its disk, its shared memory."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import psutil

from gpubalance.jobs.doctor.topic import check, guarded
from gpubalance.numbers.units import format_bytes
from gpubalance.remedies import known
from gpubalance.results.checkup import Check, Status
from gpubalance.system.state import current_folder, state_folder

_GIB = 2**30
_WORKER_TAKES = 4 * _GIB  # of the host, at most: TensorFlow and CUDA
# NCCL moves gradients through it where GPUs can't reach each other; Docker gives 64 MiB.
_SHARED = Path("/dev/shm")  # noqa: S108  (asked for its size, nothing is written)
_CGROUP = Path("/sys/fs/cgroup")


def host_checks(*, gpus: int) -> list[Check]:
    """The checks of memory and disk, and of shared memory if several GPUs may need it."""
    found = [
        guarded("host-memory", lambda: memory_check(available_memory())),
        guarded("disk", lambda: disk_check(*min(_free_bytes(), key=lambda folder: folder[1]))),
    ]
    if gpus > 1 and _SHARED.is_dir():
        found.append(guarded("shared-memory", lambda: shared_check(shutil.disk_usage(_SHARED).free)))
    return found


def available_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes that programs here can still take: the host's, or what is left of the container's limit if that is less."""
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return free
    return min(free, max(0, int(limit) - int(used))) if limit.isdigit() else free


def _free_bytes() -> list[tuple[Path, int]]:
    """Free bytes in each of the folders where results, logs and temporary files go."""
    folders = (current_folder(), state_folder("logs"), Path(tempfile.gettempdir()))
    return [(folder, shutil.disk_usage(folder).free) for folder in folders]


def memory_check(free: int) -> Check:
    """The check of the host's `free` bytes."""
    return _room(
        "host-memory",
        free,
        (_GIB, _WORKER_TAKES),
        short=f"; a worker with TensorFlow and CUDA takes up to {format_bytes(_WORKER_TAKES)}",
        remedy="close other programs: `ps aux --sort=-rss | head` shows the largest",
    )


def disk_check(folder: Path, free: int) -> Check:
    """The check of the folder with the least room, `free` in bytes. Logs, probes and journals are small."""
    remedy = f"make room there: `du -xh {folder} | sort -h | tail`"
    return _room("disk", free, (_GIB // 10, _GIB), where=f" in {folder}", remedy=remedy)


def shared_check(free: int) -> Check:
    """The check of the `free` bytes in /dev/shm."""
    return _room(
        "shared-memory",
        free,
        (0, _GIB),
        where=" in /dev/shm",
        short="; NCCL may need more, and says «unhandled system error» then",
        remedy=known("nccl-system").remedy,
    )


def _room(code: str, free: int, bounds: tuple[int, int], *, remedy: str, where: str = "", short: str = "") -> Check:
    """A failure below the first of the bounds, a warning below the second; `short` is added to both texts."""
    status: Status = "failure" if free < bounds[0] else "warning" if free < bounds[1] else "ok"
    detail = f"{format_bytes(free)} free{where}"
    return check(code, status, detail) if status == "ok" else check(code, status, f"{detail}{short}", remedy)
