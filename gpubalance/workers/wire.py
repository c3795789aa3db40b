"""What a controller and the agent on a host say to each other, over the agent's stdin and stdout.

To the agent each line is a beat (`@`), what it is to do (`@` and JSON), or a worker's number and a request for it. From
the agent each line is a beat, what it says (`@` and JSON), or `@` and three numbers: of a process, of what it has
written to, and how many bytes of that follow.
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
# One that waits in a collective ends by KILL only.
GRACE_S = 3.0
# What a script has written and nobody has read yet, in pieces; then it waits, as at a pipe, and no other process does.
PIECES_AHEAD = 64


class Start(Record):
    """A process with these devices, in the controller's `folder` where the host has that too.

    A script's name and words, which knows its place in a cluster; without words a worker.
    """

    kind: Literal["start"] = "start"
    number: int
    devices: tuple[Device, ...]
    folder: str
    command: tuple[str, ...] = ()
    cluster: Cluster | None = None


class Listen(Record):
    """Where may so many processes on this host listen, which its peers know by that name? Has it that script?"""

    kind: Literal["listen"] = "listen"
    number: int
    host: Host | None
    count: int
    folder: str
    script: str | None = None


class Signal(Record):
    """The process gets that signal, and a moment to end by it."""

    kind: Literal["signal"] = "signal"
    number: int
    signal: int


class End(Record):
    """The process is ended by force, with what it has started."""

    kind: Literal["end"] = "end"
    number: int


class More(Record):
    """So many pieces of what a script has written have been read."""

    kind: Literal["more"] = "more"
    number: int
    pieces: int


class Hello(Record):
    """What an agent says first."""

    kind: Literal["hello"] = "hello"
    installed: Installed


class Listens(Record):
    """As many addresses as were asked for, no two alike; none where that folder has no such script."""

    kind: Literal["listens"] = "listens"
    number: int
    addresses: tuple[Address, ...]
    folder: str


class Ended(Record):
    """After all that the process wrote: its exit code; below 0 it is the number of a signal."""

    kind: Literal["ended"] = "ended"
    number: int
    code: int


Told = Start | Listen | Signal | End | More
TOLD: TypeAdapter[Told] = TypeAdapter(Annotated[Told, Field(discriminator="kind")])
Said = Hello | Listens | Ended
SAID: TypeAdapter[Said] = TypeAdapter(Annotated[Said, Field(discriminator="kind")])


def line(record: Record) -> bytes:
    """What either says."""
    return MARK + record.model_dump_json().encode() + b"\n"


def piece(number: int, stream: int, chunk: bytes) -> bytes:
    """What a process has written."""
    return b"@%d %d %d\n%b" % (number, stream, len(chunk), chunk)
