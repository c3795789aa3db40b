"""Workers, and scripts that train, as forks of a process that has loaded what they import.

It saves each a third of a second of processor time, and four seconds with TensorFlow.
A fork has the files, variables, folder and words of the process that would else do its work, whose
exit code is the fork's. What a program does before its first line, and what its imports find, is for
processes without it: see tests/workers/test_plain_shell.py.
"""

from __future__ import annotations

import atexit
import functools
import marshal
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.fork_server import USED

ROOT = Path(__file__).parents[2]
SITE = ROOT / "tests" / "stand_in" / "site"
_VARIABLE = "FORKED_FROM"
_QUICK = (
    "gpubalance.workers.serve",
    "gpubalance.workers.agent",
    "gpubalance.training.launched",
    "gpubalance.engine.pace",
    "psutil",
)
_WITH_TENSORFLOW = (*_QUICK, "gpubalance.engine.session", "gpubalance.training.split")
_STARTS_WITHIN_S = 120
_servers: list[ForkServer] = []


class ForkServer:
    def __init__(self, modules: tuple[str, ...]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpubalance-forks-")
        self.address = str(Path(self._folder.name, "socket"))
        variables = {**os.environ, "PYTHONPATH": f"{SITE}{os.pathsep}{ROOT}"}
        for name in (_VARIABLE, "ENGINE_STAND_IN", "XDG_STATE_HOME"):
            variables.pop(name, None)
        reading, self._lives = os.pipe()
        command = [sys.executable, "-c", _SERVES, self.address, *modules]
        how: Any = {"cwd": ROOT, "env": variables, "start_new_session": True}
        how |= {"stdin": reading, "stdout": subprocess.DEVNULL}
        try:
            subprocess.run(command, check=True, **how)
        finally:
            os.close(reading)
        end = time.monotonic() + _STARTS_WITHIN_S
        while not Path(self.address).exists():
            assert time.monotonic() < end, "the fork server does not begin"
            time.sleep(0.01)

    def used_s(self) -> float:
        """Processor time of the server and of its forks that have ended."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asks:
            asks.connect(self.address)
            asks.send(USED)
            used_s: float = marshal.loads(asks.recv(100))  # noqa: S302
        return used_s

    def end(self) -> None:
        os.close(self._lives)
        self._folder.cleanup()


# It is no child of this process, of which some tests look at all children.
_SERVES = """
import os, sys
if os.fork():
    os._exit(0)
sys.is_fork_server = True
from tests.support.fork_server import main
main()
"""


@functools.cache
def _server(modules: tuple[str, ...]) -> ForkServer:
    started = ForkServer(modules)
    _servers.append(started)
    atexit.register(started.end)
    return started


def none() -> dict[str, str]:
    """The variables by which all processes are their own, whatever a fixture asks for later."""
    return {_VARIABLE: ""}


def quick() -> dict[str, str]:
    """The variables by which workers are forked that load no TensorFlow."""
    if os.environ.get(_VARIABLE) == "":
        return {}
    return {_VARIABLE: _server(_QUICK).address}


def with_tensorflow() -> dict[str, str]:
    """The variables by which workers and scripts are forked that have imported TensorFlow."""
    path = filter(None, (str(SITE), str(ROOT), os.environ.get("PYTHONPATH", "")))
    address = _server(_WITH_TENSORFLOW).address
    return {_VARIABLE: address, "PYTHONPATH": os.pathsep.join(path)}


@contextmanager
def forking() -> Iterator[None]:
    """Forks inside the block what workers and scripts this process starts, with TensorFlow."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in with_tensorflow().items():
            patch.setenv(name, value)
        yield


def used_s() -> float:
    """Processor time of what was forked in this process's tests."""
    return sum(server.used_s() for server in _servers)
