"""Checks of the host: its memory, its disk, its shared memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from gpubalance.jobs.doctor.check import check, tried
from gpubalance.numbers.units import format_bytes
from gpubalance.remedies import known
from gpubalance.results.checkup import Check, Status
from gpubalance.system.deadlines import ANSWERS_WITHIN_S, within
from gpubalance.system.state import current_folder, state_folder

_GIB = 2**30
_WORKER_TAKES = 4 * _GIB  # of the host, at most: TensorFlow and CUDA
# NCCL moves gradients through it where GPUs can't reach each other; Docker gives 64 MiB.
_SHARED = Path("/dev/shm")  # noqa: S108  (asked for its size, nothing is written)
_CGROUP = Path("/sys/fs/cgroup")


def host_checks(*, gpus: int) -> Iterator[Check]:
    """The checks of memory and disk, and of shared memory if several GPUs may need it."""
    yield guarded("host-memory", lambda: memory_check(available_memory()))
    folders = (current_folder(), state_folder("logs"), Path(tempfile.gettempdir()))  # of results and logs
    yield guarded("disk", lambda: disk_check(*min(((f, _free_bytes(f)) for f in folders), key=lambda one: one[1])))
    if gpus > 1 and _SHARED.is_dir():
        yield guarded("shared-memory", lambda: shared_check(_free_bytes(_SHARED)))


def guarded(code: str, look: Callable[[], Check], seconds: float = ANSWERS_WITHIN_S) -> Check:
    """The check that `look` makes in this process; a failure where it raises or hangs."""
    return tried(code, lambda: within(look, seconds))


def available_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes that programs here can still take: the host's, or what is left of the container's limit if that is less."""
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return free
    return min(free, max(0, int(limit) - int(used))) if limit.isdigit() else free


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def memory_check(free: int) -> Check:
    """The check of the host's `free` bytes."""
    short = f". A worker with TensorFlow and CUDA takes up to {format_bytes(_WORKER_TAKES)}"
    mend = "close other programs: `ps aux --sort=-rss | head` shows the largest"
    return _room("host-memory", free, _GIB, _WORKER_TAKES, mend, short=short)


def disk_check(folder: Path, free: int) -> Check:
    """The check of the folder with the least room, `free` in bytes. Logs, probes and journals are small."""
    mend = f"make room there: `du -xh {folder} | sort -h | tail`"
    return _room("disk", free, _GIB // 10, _GIB, mend, where=f" in {folder}")


def shared_check(free: int) -> Check:
    """The check of the `free` bytes in /dev/shm."""
    short, mend = ". NCCL may need more, and then says «unhandled system error»", known("nccl-system").remedy
    return _room("shared-memory", free, 0, _GIB, mend, where=" in /dev/shm", short=short)


def _room(code: str, free: int, least: int, enough: int, mend: str, *, where: str = "", short: str = "") -> Check:
    """A failure below `least`, a warning below `enough`; `short` is added to both texts."""
    status: Status = "failure" if free < least else "warning" if free < enough else "ok"
    detail = f"{format_bytes(free)} free{where}"
    return check(code, status, detail) if status == "ok" else check(code, status, f"{detail}{short}", mend)
