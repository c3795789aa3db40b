"""`scripts/bench soak [N]`: 5 N steps of a run and N worker starts, as in a probe, in one parent.

The parent's memory, file handles, threads and temporary files must not grow from soon after the
beginning to the end.
"""

from __future__ import annotations

import gc
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.run import run
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.requests import RunRequest
from gpubalance.settings.settings import Settings
from gpubalance.workers.messages import Build
from gpubalance.workers.worker_group import WorkerGroup
from scripts.benches.killed import PROFILE
from tests.jobs.drawn import nothing_kept
from tests.support.asked import asked
from tests.support.in_process import placed

_STEPS_A_WORKER = 5
_WARM = 0.2  # of the starts, after which nothing may grow
_MORE_BYTES = 16 << 20
_LOGS_KEPT = 52  # 50 old ones, and those of two workers that live


class Level(NamedTuple):
    """What the parent holds at a moment. `files` counts temporary files and logs."""

    memory_bytes: int
    handles: int
    threads: int
    files: int

    @classmethod
    def now(cls, folder: Path) -> Level:
        gc.collect()
        process = psutil.Process()
        # Up to this number of logs is kept; more files are leaks.
        files = max(_LOGS_KEPT, sum(1 for path in folder.rglob("*") if path.is_file()))
        return cls(
            process.memory_info().rss,
            process.num_fds(),
            threading.active_count(),
            files,
        )

    def __str__(self) -> str:
        return (
            f"{self.memory_bytes >> 20} MiB, {self.handles} handles, {self.threads} threads, "
            f"{self.files} files"
        )


def grown(what: str, levels: dict[int, Level]) -> Iterator[str]:
    """The lines about what has grown since the first fifth, with the levels then and at the end."""
    count = max(levels)
    first = next(number for number in levels if number >= _WARM * count)
    warm = levels[first]
    end = levels[count]
    if end.memory_bytes - warm.memory_bytes > _MORE_BYTES:
        yield f"FAILED memory grew by {end.memory_bytes - warm.memory_bytes >> 20} MiB"
    for name, then, now in list(zip(Level._fields, warm, end, strict=True))[1:]:
        if now > then:
            yield f"FAILED {now} {name}, and {then} before"
    yield f"{count} {what}: {warm} after {first}, {end} at the end"


def worker_starts(count: int, folder: Path) -> Iterator[tuple[int, Level]]:
    """Starts fresh workers of one device, one after the other, and trains a step with each."""
    (device, *_), _ = simulated_devices("fast.toml")
    with WorkerGroup(
        [device], build=Build(settings=Settings(model="small"))
    ) as worker_group:
        for number in range(count):
            worker_group.start(then=worker_group if number < count - 1 else None)
            asked(worker_group, lambda worker: list(worker.measure(BatchSplit((8,)))))
            worker_group.drop()
            yield number + 1, Level.now(folder)


def steps(count: int, folder: Path) -> Iterator[tuple[int, Level]]:
    """Runs at least that many measured steps."""
    devices, joint = simulated_devices("fast.toml")
    split = BatchSplit((8, 8))
    measuring = Measuring(windows=3, duration_s=0.5, baseline="none")
    settings = Settings(model="small")
    done = 0
    while done < count:
        request = RunRequest(
            devices=devices,
            split=split,
            settings=settings,
            joint=joint,
            measuring=measuring,
        )
        done += run(request, lambda _: None, nothing_kept()).steps
        yield done, Level.now(folder)


def main(count: int = 200) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="gpubalance-soak-") as name:
        folder = Path(name)
        with placed(folder, {"TMPDIR": name, "XDG_STATE_HOME": f"{name}/state"}):
            Path("fast.toml").write_text(PROFILE)
            tempfile.tempdir = None  # so that Python looks for it again
            yield from grown("steps", dict(steps(_STEPS_A_WORKER * count, folder)))
            yield from grown("worker starts", dict(worker_starts(count, folder)))
        tempfile.tempdir = None
