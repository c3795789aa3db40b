"""The messages between a controller and the agent on a host, over the agent's stdin and stdout.

To the agent each line is a beat (`@`), a command (`@` and JSON), or a worker's number and a request for it. From the
agent each line is a beat, a message (`@` and JSON), or `@` and three numbers: a process, the stream it has written to,
and how many bytes of that follow.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from gpubalance.devices.hosts import Installed
from gpubalance.settings.cluster import Address, Cluster
from gpubalance.settings.device import Device, Host
from gpubalance.settings.record import Record

BEATS_EVERY_S = 5.0
MARK = b"@"
OUT, ERRORS = 1, 2
# A process that waits in a collective ends only by KILL.
GRACE_S = 3.0
# The most pieces that a script has written and nobody has read yet; then it waits, as at a pipe, and no other process.
PIECES_AHEAD = 64


class Start(Record):
    """Start a process with these devices, in the controller's `folder` if the host has it.

    `command` is a script's name and words, and `cluster` its place; without a command it is a worker.
    """

    kind: Literal["start"] = "start"
    number: int
    devices: tuple[Device, ...]
    folder: str
    command: tuple[str, ...] = ()
    cluster: Cluster | None = None


class Listen(Record):
    """Find addresses for `count` processes on this host, which peers call `host`, and whether it has that script."""

    kind: Literal["listen"] = "listen"
    number: int
    host: Host | None
    count: int
    folder: str
    script: str | None = None


class Signal(Record):
    """Send the process that signal, and kill it a moment later."""

    kind: Literal["signal"] = "signal"
    number: int
    signal: int


class End(Record):
    """Kill the process and what it has started."""

    kind: Literal["end"] = "end"
    number: int


class More(Record):
    """So many pieces of what a script has written have been read."""

    kind: Literal["more"] = "more"
    number: int
    pieces: int


class Hello(Record):
    """The agent's first message."""

    kind: Literal["hello"] = "hello"
    installed: Installed


class Listens(Record):
    """As many addresses as were asked for, no two the same; none if the folder has no such script."""

    kind: Literal["listens"] = "listens"
    number: int
    addresses: tuple[Address, ...]
    folder: str


class Ended(Record):
    """Comes after all that the process wrote: its exit code; below 0 it is the number of a signal."""

    kind: Literal["ended"] = "ended"
    number: int
    code: int


Told = Start | Listen | Signal | End | More
TOLD: TypeAdapter[Told] = TypeAdapter(Annotated[Told, Field(discriminator="kind")])
Said = Hello | Listens | Ended
SAID: TypeAdapter[Said] = TypeAdapter(Annotated[Said, Field(discriminator="kind")])


def line(record: Record) -> bytes:
    """The line of a command or message."""
    return MARK + record.model_dump_json().encode() + b"\n"


def piece(number: int, stream: int, chunk: bytes) -> bytes:
    """The line and bytes of what a process has written."""
    return b"@%d %d %d\n%b" % (number, stream, len(chunk), chunk)
