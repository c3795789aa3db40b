"""BatchSplit of a core by the kernel's CPU quotas, in cgroups of version 1 or 2."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# One longer than a step makes rare slow steps; one of a kernel's tick, 4 ms, gives a tenth less
_PERIOD_US = 10_000
_DIES_WITHIN_S = 10.0


class NoQuotasError(Exception):
    """Who asks can't make a group of processes here that gets a part of a core; says why."""


@contextmanager
def group_with(name: str, cores: float | None) -> Iterator[Path]:
    """A new cgroup of that name, whose processes get so many cores together; None is no limit.

    What is left in it is killed at the end. Raises NoQuotasError.
    """
    mount, _ = _hierarchy()
    group = mount / name
    try:
        group.mkdir()
    except OSError as error:
        raise NoQuotasError(f"no CPU quotas here: {error}") from error
    try:
        limit(group, cores)
        yield group
    finally:
        empty(group)
        group.rmdir()


def joining(group: Path) -> list[str]:
    """The words before a command that run it in that group."""
    return ["sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh"]


def pids_in(group: Path) -> set[int]:
    """The processes in that group."""
    return set(map(int, (group / "cgroup.procs").read_text().split()))


def _hierarchy() -> tuple[Path, int]:
    """Where groups with quotas are made, and the version. Raises NoQuotasError."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, folder, kind, options, *_ = line.split()
        mount = Path(folder)
        if kind == "cgroup" and "cpu" in options.split(","):
            return mount, 1
        if (
            kind == "cgroup2"
            and "cpu" in (mount / "cgroup.controllers").read_text().split()
        ):
            return mount, 2
    raise NoQuotasError(
        "no CPU quotas here: the kernel's cpu controller is not mounted"
    )


def limit(group: Path, cores: float | None) -> None:
    """Gives the group its quota, and the largest weight, to have it beside whatever else runs.

    May be called again for another quota.
    """
    _, version = _hierarchy()
    quota_us = -1 if cores is None else round(cores * _PERIOD_US)
    try:
        if version == 1:
            (group / "cpu.cfs_period_us").write_text(f"{_PERIOD_US}")
            (group / "cpu.cfs_quota_us").write_text(f"{quota_us}")
            (group / "cpu.shares").write_text("262144")
        else:
            (group.parent / "cgroup.subtree_control").write_text("+cpu")
            quota = "max" if quota_us < 0 else quota_us
            (group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
            (group / "cpu.weight").write_text("10000")
    except OSError as error:
        raise NoQuotasError(f"no CPU quotas here: {error}") from error


def empty(group: Path) -> None:
    """Kills what is in the group until nothing is; new ones may come meanwhile."""
    until_s = time.monotonic() + _DIES_WITHIN_S
    while (pids := pids_in(group)) and time.monotonic() < until_s:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
