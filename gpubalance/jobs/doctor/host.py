"""Checks of the host's memory and disk. They change nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from gpubalance.jobs.doctor.check import check, guarded, ok
from gpubalance.numbers.units import format_bytes
from gpubalance.remedies import known_error
from gpubalance.results.checkup import Check, Status
from gpubalance.system.deadlines import ANSWERS_WITHIN_S, within
from gpubalance.system.state import current_folder, state_folder

# Finds the free bytes, and in which folder.
Look = Callable[[], tuple[int, Path | None]]

_GIB = 2**30
# NCCL moves gradients through it where GPUs can't reach each other; Docker gives 64 MiB.
_SHARED = Path("/dev/shm")  # noqa: S108  (asked for its size, nothing is written)
_CGROUP = Path("/sys/fs/cgroup")


class _Room(NamedTuple):
    """Below how many free bytes it fails, or is a warning; what is said then; the remedy."""

    least: int
    enough: int
    why: str
    remedy: str


_ROOM = {
    "host-memory": _Room(
        _GIB,
        4 * _GIB,
        ". A worker with TensorFlow and CUDA takes up to 4.00 GiB",
        "close other programs: `ps aux --sort=-rss | head` shows the largest",
    ),
    # Logs, probes, journals are small.
    "disk": _Room(
        _GIB // 10, _GIB, "", "make room there: `du -xh {} | sort -h | tail`"
    ),
    "shared-memory": _Room(
        0,
        _GIB,
        ". NCCL may need more, and then says «unhandled system error»",
        known_error("nccl-system").remedy,
    ),
}


def host_checks(*, gpus: int) -> Iterator[Check]:
    """The checks of memory and disk, and of shared memory if several GPUs may need it."""
    looks: dict[str, Look] = {
        "host-memory": lambda: (available_memory(), None),
        "disk": _least_free,
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
        status: Status = "failure" if free < room.least else "warning"
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


def _least_free() -> tuple[int, Path]:
    """That of the folders of results and logs which has the least."""
    folders = [current_folder(), state_folder("logs"), Path(tempfile.gettempdir())]
    return min(_free(folder) for folder in folders)
