"""The host under the devices: its memory, its disk, its shared memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from gpubalance.jobs.doctor.topic import Topic
from gpubalance.numbers.units import format_bytes
from gpubalance.remedies import known
from gpubalance.results.checkup import Check, Status
from gpubalance.system.state import current_folder, state_folder

_GIB = 2**30
# A worker with TensorFlow and CUDA takes 2 to 4 GiB of the host; logs, probes and journals are small.
_MEMORY_ENOUGH, _MEMORY_LEAST = 4 * _GIB, _GIB
_DISK_ENOUGH, _DISK_LEAST = _GIB, _GIB // 10
# NCCL moves gradients through it where GPUs can't reach each other; Docker gives 64 MiB.
_SHARED_ENOUGH = _GIB
_SHARED = Path("/dev/shm")  # noqa: S108  (asked for its size, nothing is written)
_CGROUP = Path("/sys/fs/cgroup")
_MEMORY = Topic("host-memory", "memory of the host")
_DISK = Topic("disk", "disk")
_SHARED_MEMORY = Topic("shared-memory", "shared memory")


def host_checks(*, gpus: int) -> list[Check]:
    """Memory and disk; shared memory where several GPUs may need it."""
    found = [_MEMORY.guarded(lambda: memory_check(available_memory())), _DISK.guarded(_disk_check)]
    if gpus > 1 and _SHARED.is_dir():
        found.append(_SHARED_MEMORY.guarded(lambda: shared_check(shutil.disk_usage(_SHARED).free)))
    return found


def available_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes that programs here can still take, of the host or of this container's limit, whichever is less."""
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return free
    return min(free, max(0, int(limit) - int(used))) if limit.isdigit() else free


def memory_check(free: int) -> Check:
    """The check of so many free bytes."""
    detail = f"{format_bytes(free)} free"
    status = _judged(free, _MEMORY_LEAST, _MEMORY_ENOUGH)
    if status != "ok":
        detail += f"; a worker with TensorFlow and CUDA takes up to {format_bytes(_MEMORY_ENOUGH)}"
    remedy = "close other programs: `ps aux --sort=-rss | head` shows the largest"
    return _MEMORY.check(status, detail, _unless_ok(status, remedy))


def _disk_check() -> Check:
    free = {folder: shutil.disk_usage(folder).free for folder in _folders()}
    return disk_check(*min(free.items(), key=lambda item: item[1]))


def disk_check(folder: Path, free: int) -> Check:
    """The check of the folder with the least room, `free` in bytes."""
    status = _judged(free, _DISK_LEAST, _DISK_ENOUGH)
    remedy = f"make room there: `du -xh {folder} | sort -h | tail`"
    return _DISK.check(status, f"{format_bytes(free)} free in {folder}", _unless_ok(status, remedy))


def shared_check(free: int) -> Check:
    """The check of so many free bytes in /dev/shm."""
    status: Status = "ok" if free >= _SHARED_ENOUGH else "warning"
    detail = f"{format_bytes(free)} free in /dev/shm"
    detail += "" if status == "ok" else "; NCCL may need more, and says «unhandled system error» then"
    remedy = known("nccl-system").remedy
    return _SHARED_MEMORY.check(status, detail, _unless_ok(status, remedy))


def _folders() -> Iterator[Path]:
    """Where results, logs and temporary files go."""
    yield from (current_folder(), state_folder("logs"), Path(tempfile.gettempdir()))


def _judged(free: int, least: int, enough: int) -> Status:
    return "failure" if free < least else "warning" if free < enough else "ok"


def _unless_ok(status: Status, remedy: str) -> str | None:
    return None if status == "ok" else remedy
