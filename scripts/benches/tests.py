"""What `scripts/test` takes, by the times that its last run with --durations wrote.

`alone` draws tests and runs each in a process of its own: none may need what another leaves behind.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from scripts.benches.processor_time import SuiteTimes, Taken, read_times
from tests.cli.program import ROOT

TIMES = ROOT / "build" / "test-times.json"
_SLOWEST = 25
_DRAWN = 25
_FAILED = "FAILED "
_LAST_LINES = 15


def main(path: Path = TIMES) -> Iterator[str]:
    """A row for each folder, the parts of both tiers, and the slowest tests."""
    if not path.exists():
        yield f"there is no {path}: `scripts/test --durations all` writes it"
        return
    yield from table_of(read_times(path))


def table_of(times: SuiteTimes) -> Iterator[str]:
    folders: dict[str, list[Taken]] = {}
    for name, taken in times.tests.items():
        folders.setdefault(_folder_of(name), []).append(taken)
    yield f"{'':24}{'tests':>8}{'processor':>12}{'in children':>12}{'first tier':>12}{'wall':>9}"
    for folder, taken_there in sorted(folders.items(), key=lambda one: -_sum(one[1])):
        yield _row(folder, taken_there)
    everything = list(times.tests.values())
    yield _row("all", everything)
    beside_s = times.processor_s - _sum(everything)
    yield f"{'imports and collection':32}{beside_s:10.1f} s"
    yield f"{times.wall_s:.0f} s of wall time in all; the slowest tests are"
    slowest = sorted(times.tests.items(), key=lambda one: -one[1].processor_s)
    for name, taken in slowest[:_SLOWEST]:
        tier = "all" if taken.is_full else ""
        yield f"{taken.processor_s:8.1f} s {tier:4} {name}"


def _folder_of(name: str) -> str:
    return str(PurePosixPath(name.partition("::")[0]).parent)


def _row(name: str, taken: list[Taken]) -> str:
    quick = [one for one in taken if not one.is_full]
    children_s = sum(one.children_s for one in taken)
    wall_s = sum(one.wall_s for one in taken)
    seconds = f"{_sum(taken):10.1f} s{children_s:10.1f} s{_sum(quick):10.1f} s"
    return f"{name:24}{len(taken):8}{seconds}{wall_s:7.0f} s"


def _sum(taken: list[Taken]) -> float:
    return sum(one.processor_s for one in taken)


def alone(count: int = _DRAWN, seed: int | None = None) -> Iterator[str]:
    """Draws so many tests and runs each by itself; exits with 1 if any fails."""
    seed = random.randrange(1_000_000) if seed is None else seed
    is_any_failed = False
    for line in alone_in(ROOT, count, seed):
        is_any_failed |= line.startswith(_FAILED)
        yield line
    if is_any_failed:
        sys.exit(1)


def alone_in(folder: Path, count: int, seed: int) -> Iterator[str]:
    """The last lines of each drawn test of a folder that fails by itself, and how many did."""
    names = _collected(folder)
    drawn = random.Random(seed).sample(names, min(count, len(names)))
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        ended = threads.map(
            lambda name: _pytest(folder, "-q", "--no-header", name), drawn
        )
        for name, done in zip(drawn, ended, strict=True):
            if done.returncode:
                failed += 1
                yield f"{_FAILED}{name}"
                yield from done.stdout.splitlines()[-_LAST_LINES:]
    yield f"{len(drawn)} of {len(names)} tests each alone, {failed} failed; seed {seed}"


def _collected(folder: Path) -> list[str]:
    listed = _pytest(folder, "--collect-only", "-q").stdout
    names = [line for line in listed.splitlines() if "::" in line]
    assert names, listed
    return names


def _pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    )
