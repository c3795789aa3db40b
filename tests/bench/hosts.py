"""`scripts/bench hosts [N]`: planner and control of up to N hosts with 8 devices each, behind stand-ins for agents.

Each host's agent is tests/stand_in/agent.c: it answers at once and trains nothing, so the figures are the
controller's own cost.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import psutil

from gpubalance.devices.hosts import Installed, reach
from gpubalance.planning.allocate import allocate
from gpubalance.planning.model import Line
from gpubalance.planning.problem import Load, Problem
from gpubalance.planning.sync import with_sync
from gpubalance.settings.device import Device
from gpubalance.settings.requests import Settings
from gpubalance.settings.shares import Shares
from gpubalance.workers.agents import connected
from gpubalance.workers.party import Build, Party
from gpubalance.workers.wire import Hello

HOSTS = (2, 16, 128, 1_000)
_DEVICES = 8
_TIMINGS = 20


def main(most: int = HOSTS[-1]) -> Iterator[str]:
    """A line for each number of hosts. CPU seconds are this process's, without the stand-ins'."""
    yield _row("hosts", "devices", "plan CPU s", "open CPU s", "open s", "timing CPU ms", "end s", "MiB", "files")
    for hosts in HOSTS:
        if hosts <= most:
            yield _row(f"{hosts:,}", f"{hosts * _DEVICES:,}", f"{_plan_s(hosts):.2f}", *_control(hosts))


def _row(*cells: str) -> str:
    return "".join(cell.rjust(14) for cell in cells)


def _plan_s(hosts: int) -> float:
    """Seconds of a plan for devices that all differ, with a sync that is less over fewer hosts."""
    random = Random(hosts)
    loads = tuple(
        Load(Line(random.uniform(0.005, 0.05), random.uniform(1e-4, 1e-3), 0.0), random.randint(100, 10_000), host=host)
        for host in range(hosts)
        for _ in range(_DEVICES)
    )
    problem = with_sync(Problem(loads), {1: 0.005, 2: 0.020, hosts: 0.050})
    began = time.process_time()
    allocate(problem)
    return time.process_time() - began


def _control(hosts: int) -> tuple[str, ...]:
    devices = tuple(
        Device(
            index=index,
            uuid=f"GPU-{host:04}-{index}",
            name="NVIDIA A100-SXM4-40GB",
            memory_bytes=40 << 30,
            simulated=False,
            host=f"node{host:04}",
        )
        for host in range(hosts)
        for index in range(_DEVICES)
    )
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("XDG_STATE_HOME")
        os.environ["XDG_STATE_HOME"] = folder
        said = f"@{Hello(installed=Installed.here()).model_dump_json()}"
        names = dict.fromkeys(device.host or "" for device in devices)
        reach(",".join(names), shlex.join([str(_agent(Path(folder))), said, str(_TIMINGS), "{host}"]))
        try:
            return _timed(devices)
        finally:
            reach(None, None)
            os.environ.update({"XDG_STATE_HOME": before} if before else {})


def _timed(devices: tuple[Device, ...]) -> tuple[str, ...]:
    split, process = Shares((64,) * len(devices)), psutil.Process()
    moments = [(time.perf_counter(), time.process_time())]
    with connected(devices), Party(devices, build=Build(Settings(model="small"))) as party:
        party.start()
        moments.append((time.perf_counter(), time.process_time()))
        party.ask(lambda worker: list(worker.measure(split, at_least=_TIMINGS, stamped=True)))
        moments.append((time.perf_counter(), time.process_time()))
        held = process.memory_info().rss >> 20, process.num_fds()
    moments.append((time.perf_counter(), time.process_time()))
    (open_s, open_cpu_s), (_, timings_cpu_s), (end_s, _) = (
        (then - before, cpu_then - cpu_before) for (before, cpu_before), (then, cpu_then) in pairwise(moments)
    )
    return (
        *(f"{seconds:.2f}" for seconds in (open_cpu_s, open_s, 1000 * timings_cpu_s / _TIMINGS, end_s)),
        *(f"{count:,}" for count in held),
    )


def _agent(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler is not None, "no C compiler (cc, gcc or clang) to build the stand-in for an agent with"
    program = folder / "agent"
    source = Path(__file__).parents[1] / "stand_in" / "agent.c"
    subprocess.run([compiler, "-O1", "-Wall", "-Wextra", "-o", str(program), str(source)], check=True)
    return program
