"""`scripts/bench soak [N]`: 5 N steps of a run and N worker starts as a probe makes them, in one parent.

The parent's memory, file handles, threads and temporary files must be as many at the end as soon after the beginning.
"""

from __future__ import annotations

import gc
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.run import run
from gpubalance.settings.requests import Measuring, RunRequest, Settings
from gpubalance.settings.shares import Shares
from gpubalance.workers.party import Build, Party
from tests.bench.killed import PROFILE

_STEPS_A_CHILD = 5
_WARM = 0.2  # of the starts, after which things must be flat
_MORE_BYTES = 16 << 20
_LOGS_KEPT = 52  # 50 old ones, and those of two workers that live


class Level(NamedTuple):
    """What the parent holds at a moment. `files` are temporary ones and logs."""

    memory_bytes: int
    handles: int
    threads: int
    files: int

    @classmethod
    def now(cls, folder: Path) -> Level:
        gc.collect()
        process = psutil.Process()
        files = sum(1 for path in folder.rglob("*") if path.is_file())
        return cls(process.memory_info().rss, process.num_fds(), threading.active_count(), files)

    def __str__(self) -> str:
        return f"{self.memory_bytes >> 20} MiB, {self.handles} handles, {self.threads} threads, {self.files} files"


def faults(warm: Level, end: Level) -> list[str]:
    """What has grown."""
    more = end.memory_bytes - warm.memory_bytes
    found = [f"memory grew by {more >> 20} MiB"] if more > _MORE_BYTES else []
    rest = list(zip(Level._fields, warm, end, strict=True))[1:]
    return found + [f"{now} {name}, and {then} before" for name, then, now in rest if now > then]


class Levels:
    """Looks at what the parent holds, as it goes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at: dict[int, Level] = {}

    def look(self, number: int) -> None:
        """After so many."""
        self._at[number] = Level.now(self._folder)

    def told(self, count: int, what: str) -> Iterator[str]:
        """What has grown since things were warm, and the levels then and at the end."""
        warm = next(number for number in self._at if number >= _WARM * count)
        # Logs are kept up to their number; what is beyond that is left behind.
        both = (level._replace(files=max(level.files, _LOGS_KEPT)) for level in (self._at[warm], self._at[count]))
        for fault in faults(*both):
            yield f"FAILED {fault}"
        yield f"{count} {what}: {self._at[warm]} after {warm}, {self._at[count]} at the end"


def child_starts(count: int, look: Callable[[int], None]) -> None:
    """Fresh workers of one device, one after the other, each trained with for a step."""
    (device, *_), _ = simulated_devices(str(_profile()))
    with Party([device], build=Build(Settings(model="small"))) as party:
        for number in range(count):
            party.start(ahead=number < count - 1)
            party.ask(lambda worker: list(worker.measure(Shares((8,)))))
            party.drop()
            look(number + 1)


def steps(count: int, look: Callable[[int], None]) -> int:
    """Runs of so many measured steps at least: their number."""
    devices, joint = simulated_devices(str(_profile()))
    done = 0
    while done < count:
        request = RunRequest(
            devices=devices,
            split=Shares((8, 8)),
            settings=Settings(model="small"),
            joint=joint,
            measuring=Measuring(windows=3, duration_s=0.5, baseline="none"),
        )
        done += run(request, None, watch=lambda _: None).steps
        look(done)
    return done


def _profile() -> Path:
    path = Path(os.environ["TMPDIR"]) / "fast.toml"
    path.write_text(PROFILE)
    return path


def main(count: int = 200) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="gpubalance-soak-") as name:
        folder, before = Path(name), dict(os.environ)
        os.environ.update(TMPDIR=name, XDG_STATE_HOME=str(folder / "state"))
        tempfile.tempdir = None  # it is looked for again
        try:
            of_steps, of_starts = Levels(folder), Levels(folder)
            done = steps(_STEPS_A_CHILD * count, of_steps.look)
            yield from of_steps.told(done, "steps")
            child_starts(count, of_starts.look)
            yield from of_starts.told(count, "worker starts")
        finally:
            os.environ.clear()
            os.environ.update(before)
            tempfile.tempdir = None
