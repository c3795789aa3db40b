"""What runs on another host, behind the prefix that reaches it.

It starts one worker there and passes lines on, in both directions: its stdin and stdout are the controller's, its
stderr is the worker's log. What the two say to each other begins with `@`, and `@` alone is a beat. It needs no
TensorFlow. When its controller is gone, or has said nothing for half a minute, it ends its worker and itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from typing import Annotated, Literal

import psutil
from pydantic import Field, TypeAdapter

from gpubalance.devices.hosts import Installed
from gpubalance.settings.cluster import Address
from gpubalance.settings.device import Device, Host
from gpubalance.settings.record import Record
from gpubalance.workers.environment import worker_environment
from gpubalance.workers.process import serving

BEATS_EVERY_S = 5.0
_ALONE_S = 30.0
_ENDS_WITHIN_S = 0.5
MARK = b"@"
LISTEN = MARK + b"listen"


class Start(Record):
    """What it is told first: a worker with these devices, in the controller's `folder` where the host has that too."""

    host: Host
    devices: tuple[Device, ...]
    folder: str


class Hello(Record):
    """What an agent says first."""

    kind: Literal["hello"] = "hello"
    installed: Installed


class Listens(Record):
    """Where the worker may listen: the answer to `LISTEN`."""

    kind: Literal["listens"] = "listens"
    address: Address


class Ended(Record):
    """The worker has ended, with that exit code; below 0 it is the number of a signal."""

    kind: Literal["ended"] = "ended"
    code: int | None


SAID: TypeAdapter[Hello | Listens | Ended] = TypeAdapter(
    Annotated[Hello | Listens | Ended, Field(discriminator="kind")]
)


class _Controller:
    """The controller's end: lines to it, each in one piece."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)  # whatever prints, prints into the log
        self._one = threading.Lock()

    def pass_on(self, line: bytes) -> None:
        with self._one, contextlib.suppress(OSError):  # a controller that is gone is noticed where it is read
            while line:
                line = line[os.write(self._out, line) :]

    def say(self, record: Record) -> None:
        self.pass_on(MARK + record.model_dump_json().encode() + b"\n")

    def beat(self) -> None:
        while True:
            threading.Event().wait(BEATS_EVERY_S)
            self.pass_on(MARK + b"\n")


def main() -> None:
    """Serves until the controller closes its end, or is silent."""
    controller = _Controller()
    controller.say(Hello(installed=Installed.here()))
    with os.fdopen(0, "rb", 0) as stdin:
        if not select.select([stdin], [], [], _ALONE_S)[0]:
            return
        start = Start.model_validate_json(stdin.readline())
        with contextlib.suppress(OSError):
            os.chdir(start.folder)
        requests, to_worker = os.pipe()
        from_worker, replies = os.pipe()
        worker = serving(requests, replies, 2, worker_environment(start.devices))
        signal.signal(signal.SIGTERM, lambda *_: _kill(worker))
        os.close(requests)
        os.close(replies)
        told = threading.Event()
        for work in (
            lambda: _relay(from_worker, controller, told),
            lambda: _tell_end(worker, controller, told),
            controller.beat,
        ):
            threading.Thread(target=work, daemon=True).start()
        try:
            _serve(stdin.fileno(), to_worker, start.host, controller)
        finally:
            os.close(to_worker)
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(_ENDS_WITHIN_S)  # it ends when its requests do, unless it is stuck in a collective
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
            os._exit(0)  # the other threads wait for nobody


def _serve(stdin: int, to_worker: int, host: str, controller: _Controller) -> None:
    """Passes on what the controller says, until it says nothing any more."""
    rest = b""
    while select.select([stdin], [], [], _ALONE_S)[0]:
        chunk = os.read(stdin, 1 << 16)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line == LISTEN:
                controller.say(Listens(address=_free_address(host)))
            elif line != MARK:
                _write(to_worker, line + b"\n")


def _write(descriptor: int, line: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # a worker that has died is told where it is read
        while line:
            line = line[os.write(descriptor, line) :]


def _relay(from_worker: int, controller: _Controller, told: threading.Event) -> None:
    with os.fdopen(from_worker, "rb") as replies:
        for line in replies:
            if line.endswith(b"\n"):
                controller.pass_on(line)
    told.set()


def _tell_end(worker: subprocess.Popen[bytes], controller: _Controller, told: threading.Event) -> None:
    """After all that it said. What it has started may hold its end of the pipe."""
    code = worker.wait()
    told.wait(_ENDS_WITHIN_S)
    controller.say(Ended(code=code))


def _kill(worker: subprocess.Popen[bytes]) -> None:
    """Ends it by force, with what it has started, and this process: a signal's handler must wait for nothing."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    os._exit(0)


def _free_address(host: str) -> str:
    """A port of this host that is free now, at the address by which others know it.

    That is its name's, or the one that ssh came to, or else the first of its network cards.
    """
    up = {name for name, card in psutil.net_if_stats().items() if card.isup}
    own = [
        one.address
        for name, addresses in psutil.net_if_addrs().items()
        for one in addresses
        if name in up and one.family == socket.AF_INET and not one.address.startswith("127.")
    ]
    named = [*os.environ.get("SSH_CONNECTION", "").split()[2:3]]
    with contextlib.suppress(OSError):
        named.insert(0, socket.gethostbyname(host))
    address = next((one for one in (*named, *own) if one in own), "127.0.0.1")
    with socket.create_server((address, 0)) as free:
        return f"{address}:{free.getsockname()[1]}"
