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
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NoReturn

import psutil
from pydantic import Field, TypeAdapter

from gpubalance.devices.hosts import Installed
from gpubalance.settings.cluster import Address
from gpubalance.settings.device import Device, Host
from gpubalance.settings.record import Record
from gpubalance.workers.environment import worker_environment
from gpubalance.workers.pipes import readable
from gpubalance.workers.process import serving

BEATS_EVERY_S = 5.0
_ALONE_S = 30.0
_ENDS_WITHIN_S = 0.5
_LOOKS_EVERY_S = 0.5
_CHUNK = 1 << 16
_WHOLE_PIPE = 1 << 20
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


class Controller:
    """The controller's end: lines to it, each in one piece."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)  # whatever prints, prints into the log
        self._one = threading.Lock()
        self.pass_on(b"\n")  # what greets there may not have ended its line

    def pass_on(self, line: bytes) -> None:
        with self._one, contextlib.suppress(OSError):  # a controller that is gone is noticed where it is read
            while line:
                line = line[os.write(self._out, line) :]

    def say(self, record: Record) -> None:
        self.pass_on(MARK + record.model_dump_json().encode() + b"\n")

    def hear_of(self, process: subprocess.Popen[Any], relay: Callable[[], None]) -> None:
        """From now on it gets what `relay` passes on, then the process's end, and beats meanwhile."""

        def tell() -> None:
            relay()
            self.say(Ended(code=process.wait()))

        for work in (tell, self._beat):
            threading.Thread(target=work, daemon=True).start()

    def _beat(self) -> None:
        while True:
            threading.Event().wait(BEATS_EVERY_S)
            self.pass_on(MARK + b"\n")


def main() -> None:
    """Serves until the controller closes its end, or is silent."""
    controller = Controller()
    controller.say(Hello(installed=Installed.here()))
    lines = heard(0)
    told_first = next(lines, None)
    if told_first is None:
        return
    start = Start.model_validate_json(told_first)
    with contextlib.suppress(OSError):
        os.chdir(start.folder)
    requests, to_worker = os.pipe()
    from_worker, replies = os.pipe()
    worker = serving(requests, replies, 2, worker_environment(start.devices))
    signal.signal(signal.SIGTERM, lambda *_: kill(worker))
    os.close(requests)
    os.close(replies)
    controller.hear_of(worker, lambda: _relay(worker, from_worker, controller))
    try:
        for line in lines:
            if line == LISTEN:
                with free_port(start.host) as address:
                    controller.say(Listens(address=address))
            else:
                _write(to_worker, line + b"\n")
    finally:
        os.close(to_worker)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(_ENDS_WITHIN_S)  # it ends when its requests do, unless it is stuck in a collective
        end(worker)


def heard(stdin: int) -> Iterator[bytes]:
    """What the controller says there besides its beats, until it has gone or says nothing any more."""
    rest = b""
    while select.select([stdin], [], [], _ALONE_S)[0]:
        chunk = os.read(stdin, _CHUNK)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line != MARK)


def _write(descriptor: int, line: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # a worker that has died is told where it is read
        while line:
            line = line[os.write(descriptor, line) :]


def _relay(worker: subprocess.Popen[Any], from_worker: int, controller: Controller) -> None:
    rest = b""
    for chunk in said(worker, from_worker):
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        controller.pass_on(whole + newline)


def said(process: subprocess.Popen[Any], pipe: int) -> Iterator[bytes]:
    """All that the process writes there until it ends. What it has started may hold its end of the pipe for longer."""
    while process.poll() is None:
        if readable(pipe, _LOOKS_EVERY_S):
            chunk = os.read(pipe, _CHUNK)
            if not chunk:
                return
            yield chunk
    if readable(pipe, 0):
        yield os.read(pipe, _WHOLE_PIPE)


def kill(started: subprocess.Popen[Any]) -> NoReturn:
    """Ends it by force, with what it has started, and this process: a signal's handler must wait for nothing."""
    signal_group(started, signal.SIGKILL)
    os._exit(0)


def end(started: subprocess.Popen[Any]) -> NoReturn:
    """The same, and waits until it is gone: a GPU gives its memory back only then."""
    signal_group(started, signal.SIGKILL)
    started.wait()
    os._exit(0)  # the other threads wait for nobody


def signal_group(started: subprocess.Popen[Any], number: int) -> None:
    """To it and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, number)


@contextlib.contextmanager
def free_port(host: Host | None) -> Iterator[str]:
    """Holds one, on which nobody listens, at the address by which others know this host; None is known to itself only.

    That is its name's, or the one that ssh came to, or else the first of its network cards.
    """
    with socket.socket() as held:
        held.bind((_address(host) if host else "127.0.0.1", 0))
        yield "{}:{}".format(*held.getsockname())


def _address(host: Host) -> str:
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
    return next((one for one in (*named, *own) if one in own), "127.0.0.1")
