"""All that takes hosts, over hosts that are really unlike: by ssh, by Slurm and over Ray.

Each host has a part of a core and a link of a given rate, and is there only meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from gpubalance.results.checkup import Checkups
from gpubalance.results.plan import Plan
from gpubalance.results.records import read_record
from scripts.benches import clusters, losses
from scripts.benches.clusters import NotServedError, Way
from scripts.benches.namespaces import NoNamespacesError
from scripts.benches.quotas import NoQuotasError
from scripts.benches.unlike_hosts import Hosts, Left, unlike_hosts
from scripts.benches.wanted import Wanted
from tests.cli.program import PROGRAM, ROOT
from tests.support.known import known

_PARTS = (1.0, 0.45, 0.45)
_RATE = "1gbit"
_GLOBAL_BATCH = "1024"
_MODEL = "few_weights"
_WAYS = {"ssh": clusters.ssh, "srun": clusters.srun, "ray": clusters.ray}
# What they need, and Debian's package that has it
_NEEDED = {
    "ip": "iproute2",
    "tc": "iproute2",
    "ssh": "openssh-client",
    "/usr/sbin/sshd": "openssh-server",
    "srun": "slurm-wlm",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "munged": "munge",
}
_OFF, _OVER_EVEN, _TOLD = Wanted(maximum=0.05), Wanted(1.3), Wanted(0.93, 1.07)
_ENDS_WITHIN_S = 40.0
_TRAINS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from scripts.benches.synced import train
train("../plan.json", {_MODEL!r})
"""


def main(count: int = 2) -> Iterator[str]:
    """The lines about two hosts, or three."""
    if not 2 <= count <= len(_PARTS):
        yield "makes two hosts or three"
        return
    lacking = yield from _install()
    if lacking:
        yield f"not measured: {lacking}"
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    parts = _PARTS[:count]
    shown = ", ".join(f"{part:.0%}" for part in parts)
    yield f"hosts with {shown} of a core, links of {_RATE}, a global batch of {_GLOBAL_BATCH}"
    for name in _WAYS:
        try:
            for line in over(name, parts):
                yield f"{name}: {line}"
        except (NoNamespacesError, NoQuotasError, NotServedError) as error:
            yield f"{name}: not measured: {error}"


def _install() -> Generator[str, None, str]:
    """Installs what is missing, and tells so before; returns why it can't be measured, if so."""
    if os.geteuid():
        return "who makes hosts, quotas and servers is root"
    missing = {
        package for program, package in _NEEDED.items() if not shutil.which(program)
    }
    if missing and shutil.which("apt-get"):
        names = sorted(missing)
        yield f"installs {' '.join(names)} of Debian's packages, which stay"
        _apt_get("update")
        _apt_get("install", "-y", "--no-install-recommends", *names)
    lacking = [program for program in _NEEDED if not shutil.which(program)]
    if find_spec("ray") is None:
        lacking.append("ray for Python")
    return f"there is no {', '.join(lacking)}" if lacking else ""


def _apt_get(*words: str) -> None:
    quietly = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(
        ["apt-get", "-qq", *words], env=quietly, stdout=subprocess.DEVNULL, check=False
    )


def _leave(number: int, _: object) -> None:
    """Leaves all blocks, so that what was made is undone."""
    sys.exit(128 + number)


def over(name: str, parts: Sequence[float]) -> Iterator[str]:
    """The lines about one way to reach hosts with these parts of a core."""
    with (
        tempfile.TemporaryDirectory(prefix="gpb") as folder,
        unlike_hosts(parts, _RATE, Path(folder)) as hosts,
        _WAYS[name](hosts) as way,
    ):
        before = hosts.left()
        user = _User(hosts, way)
        yield from _commands(user, parts)
        if name == "ssh" and "--restarts" in user.types("launch", "--help"):
            yield losses.line_about(hosts, way)
        yield f"left behind: {_new_since(before, hosts, way)}"


class _User:
    """Who types commands over these hosts."""

    def __init__(self, hosts: Hosts, way: Way) -> None:
        self.folder = hosts.folder
        self._hosts, self._way = hosts, way
        self.plain = ("--hosts", way.hosts, *way.via, "--simulate", "1")
        self.via = way.via

    def types(self, *words: str) -> str:
        """What the command prints. Raises NotServedError if it fails."""
        done = self._hosts.typed([PROGRAM, *words], **self._way.variables)
        if done.returncode:
            raise NotServedError(
                f"{' '.join(words)}: {done.returncode}: {done.stderr[-2000:]}"
            )
        return done.stdout


def _commands(user: _User, parts: Sequence[float]) -> Iterator[str]:
    """What each command gave, and how long it took."""
    began_s = time.monotonic()
    listed = user.types("devices", *user.plain)
    yield f"devices: {listed.count('its own time')} of {len(parts)}"
    checkups = Checkups.model_validate_json(user.types("doctor", "--json", *user.plain))
    statuses = [check.status for host in checkups.hosts for check in host.checks]
    counts = ", ".join(
        f"{statuses.count(status)} {status}" for status in sorted(set(statuses))
    )
    yield f"doctor: {counts}"
    model = ("--model", f"{ROOT}/scripts/benches/models.py:{_MODEL}")
    batch = ("--global-batch", _GLOBAL_BATCH)
    user.types("balance", *user.plain, *model, *batch, "-o", "../plan.json")
    plan = read_record(user.folder / "plan.json", Plan)
    yield from _of_plan(plan, parts)
    (user.folder / "train.py").write_text(_TRAINS)
    printed = user.types("launch", *user.via, "../plan.json", "../train.py")
    told, trained = known(plan.run).throughput.median, float(printed.rpartition("|")[2])
    ratio = told / trained
    judged = f"{ratio:.3f}; wanted {_TOLD}: {_TOLD.decision(ratio, ratio)}"
    yield f"told {told:.0f} samples/s, trained {trained:.0f}: {judged}"
    yield f"all that took {time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}"


def _of_plan(plan: Plan, parts: Sequence[float]) -> Iterator[str]:
    """The split that `balance` found and proved, beside that of the quotas."""
    shares = [part / sum(parts) for part in parts]
    found = [batch / plan.global_batch for batch in plan.batches]
    off = max(abs(share - own) for share, own in zip(shares, found, strict=True))
    by_quotas = "/".join(f"{plan.global_batch * share:.0f}" for share in shares)
    split = f"split {'/'.join(map(str, plan.batches))}, by the quotas {by_quotas}"
    yield f"{split}: {off:.1%} of the batch off; wanted {_OFF}: {_OFF.decision(off, off)}"
    run = known(plan.run)
    low, high = known(run.speedup_ci95)
    ratio = (
        f"{known(run.speedup_over_even):.3f} × the even split ({low:.3f} to {high:.3f})"
    )
    yield f"{ratio}; wanted {_OVER_EVEN}: {_OVER_EVEN.decision(low, high)}"


def _new_since(before: Left, hosts: Hosts, way: Way) -> str:
    """What was not there before, once it had the time to end."""
    way.close()
    until_s = time.monotonic() + _ENDS_WITHIN_S
    new = hosts.left() - before
    while (new.processes or new.sockets) and time.monotonic() < until_s:
        time.sleep(1.0)
        new = hosts.left() - before
    return str(new)
