"""`launch`: a training script, in a process for each device of a plan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Literal

from gpubalance.devices.cluster import tf_config
from gpubalance.errors import EnvironmentFault, Interrupted
from gpubalance.results.plan import Plan
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, hosts_of
from gpubalance.workers.environment import worker_environment
from gpubalance.workers.parent import die_with_parent
from gpubalance.workers.process import free_addresses

# When one has failed, the others may still say why; a process that waits in a collective ends by KILL only.
_GRACE_S = 3.0
_LOOKS_EVERY_S = 0.1

# Called with a line, the label of the process that printed it, and where.
Tell = Callable[[str, str, Literal["stdout", "stderr"]], None]


def launch(plan: Plan, command: Sequence[str], tell: Tell) -> int:
    """Runs the command in all processes to their end. The exit code of the first that failed, else 0.

    A plan of one host is one process, as its devices are one strategy's. An interrupt is passed on to all of them.
    """
    devices = [plan.devices[number] for number in plan.split.used]
    groups = [[device] for device in devices] if len(hosts_of(devices)) > 1 else [devices]
    addresses = free_addresses(len(groups))
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank, group in enumerate(groups):
            cluster = Cluster(addresses=addresses, rank=rank) if len(groups) > 1 else None
            processes.append(_start(command, group, cluster))
        readers = [
            threading.Thread(target=_forward, args=(stream, name, _label(group), tell))
            for process, group in zip(processes, groups, strict=True)
            for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr"))
        ]
        for reader in readers:
            reader.start()
        code = _code_of(processes)
        for reader in readers:
            reader.join()
    except KeyboardInterrupt as interrupt:
        _pass_on(processes, getattr(interrupt, "number", signal.SIGINT))
        raise Interrupted.by(interrupt, remedy="every process of it has ended") from None
    finally:
        _end(processes)
    return code


def _start(command: Sequence[str], devices: Sequence[Device], cluster: Cluster | None) -> subprocess.Popen[str]:
    """A process that sees its devices, knows its place, and ends with this one."""
    environment = worker_environment(devices) | (tf_config(cluster) if cluster else {})
    try:
        return subprocess.Popen(  # noqa: S603  (no shell: the words are the user's own command line)
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    except OSError as error:
        raise EnvironmentFault(f"can't start {command[0]}: {error.strerror}") from None


def _label(devices: Sequence[Device]) -> str:
    """`alpha:0`; of several devices in one process `GPU:0, GPU:1`."""
    return ", ".join(device.label for device in devices)


def _forward(stream: IO[str], name: Literal["stdout", "stderr"], label: str, tell: Tell) -> None:
    for line in stream:
        tell(line.rstrip("\n"), label, name)


def _code_of(processes: Sequence[subprocess.Popen[str]]) -> int:
    """Waits for all. Where one fails the others get a moment, and are ended."""
    left = list(processes)
    while left:
        for process in left:
            code = process.poll()
            if code:
                _wait(processes, _GRACE_S)
                _end(processes)
                return code if code > 0 else 128 - code
        left = [process for process in left if process.poll() is None]
        time.sleep(_LOOKS_EVERY_S)
    return 0


def _pass_on(processes: Sequence[subprocess.Popen[str]], number: int) -> None:
    for process in processes:
        _signal(process, number)
    _wait(processes, _GRACE_S)


def _wait(processes: Sequence[subprocess.Popen[str]], within_s: float) -> None:
    end = time.monotonic() + within_s
    while time.monotonic() < end and any(process.poll() is None for process in processes):
        time.sleep(_LOOKS_EVERY_S)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """With whatever they have started."""
    for process in processes:
        _signal(process, signal.SIGKILL)
    for process in processes:
        process.wait()


def _signal(process: subprocess.Popen[str], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return
