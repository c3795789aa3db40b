"""Forks programs of ours from a process that has loaded their modules: see tests/support/forks.py.

`python fork_server.py SOCKET MODULE...`. What is asked for comes from the stand-in's sitecustomize
in a process that would else load them itself: its open files, variables, folder and words. That
process gets each signal first and passes it on; when it is gone, so is the fork. The server ends
with its stdin. A TensorFlow that is only imported has no threads or devices yet.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import importlib
import marshal
import os
import resource
import runpy
import select
import signal
import socket
import sys
from pathlib import Path
from typing import NamedTuple

USED = b"?"
_STDIN = 0
_ABOVE = 500  # no process of a test has so many open files
_LONGEST = 1 << 20


class _Asked(NamedTuple):
    """What to run, and the open files that it has, as they came and as it knows them."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    path: list[str]
    files: dict[int, int]


def main() -> None:
    address, *modules = sys.argv[1:]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _load(modules)
    listener.bind(address)
    listener.listen(64)
    asked = _Server(listener.detach()).serve()
    if asked is not None:
        _become(asked)


def _load(modules: list[str]) -> None:
    from gpubalance.workers.serve import lean_import

    with lean_import():
        for module in modules:
            importlib.import_module(module)


class _Server:
    def __init__(self, listener: int) -> None:
        self._listener = listener
        self._poll = select.poll()
        # By the file that tells of a fork's end, and by the one that leads to who asked for it
        self._forks: dict[int, tuple[int, int]] = {}
        self._askers: dict[int, int] = {}

    def serve(self) -> _Asked | None:
        """Returns in each fork what it shall be, and None in the server when its stdin ends."""
        for file in (self._listener, _STDIN):
            self._poll.register(file, select.POLLIN)
        while True:
            for file, _ in self._poll.poll():
                if file == _STDIN:
                    for pid, _ in self._forks.values():
                        _signal(pid, signal.SIGKILL)
                    return None
                if file == self._listener:
                    if (asked := self._accept()) is not None:
                        return asked
                elif file in self._forks:
                    self._reap(file)
                elif file in self._askers:
                    self._pass_on(file)

    def _accept(self) -> _Asked | None:
        listener = socket.socket(fileno=os.dup(self._listener))
        with listener:
            connection, _ = listener.accept()
        with connection:
            room = socket.CMSG_SPACE(256 * 4)
            request, controls, _, _ = connection.recvmsg(_LONGEST, room)
            if request == USED:
                connection.send(marshal.dumps(_used_s()))
                return None
            connection.setblocking(False)
            asks = connection.detach()
        files = array.array("i")
        for _, _, data in controls:
            files.frombytes(data)
        if not request:  # it was killed meanwhile
            os.close(asks)
            return None
        words, environment, folder, path, numbers = marshal.loads(request)  # noqa: S302
        pid = os.fork()
        if pid == 0:
            above = [fcntl.fcntl(file, fcntl.F_DUPFD, _ABOVE) for file in files]
            given = dict(zip(numbers, above, strict=True))
            os.closerange(0, _ABOVE)
            return _Asked(words, environment, folder, path, given)
        for file in files:
            os.close(file)
        ends = os.pidfd_open(pid)
        self._forks[ends] = pid, asks
        self._askers[asks] = pid
        for file in (ends, asks):
            self._poll.register(file, select.POLLIN)
        return None

    def _reap(self, ends: int) -> None:
        pid, asks = self._forks.pop(ends)
        _, status = os.waitpid(pid, 0)
        self._poll.unregister(ends)
        os.close(ends)
        if self._askers.pop(asks, None) is not None:
            self._poll.unregister(asks)
        with contextlib.suppress(OSError):
            os.write(asks, marshal.dumps(os.waitstatus_to_exitcode(status)))
        os.close(asks)

    def _pass_on(self, file: int) -> None:
        told = b""
        try:
            told = os.read(file, 1)
        except BlockingIOError:  # another's file had this number before
            return
        except ConnectionError:
            pass
        if told:
            _signal(self._askers[file], told[0])
            return
        _signal(self._askers.pop(file), signal.SIGKILL)
        self._poll.unregister(file)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _used_s() -> float:
    """Processor time of this process and of its forks that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _become(asked: _Asked) -> None:
    for number, file in asked.files.items():
        os.dup2(file, number)
        os.close(file)
    os.setsid()
    os.chdir(asked.folder)
    os.environ.clear()
    os.environ.update(asked.environment)
    sys.path[:] = asked.path
    sys.argv[:] = asked.words
    sys.modules["sitecustomize"].prepare()
    program = asked.words[0]
    sys.path.insert(0, str(Path(program).absolute().parent))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
