"""The record of a queue of commands, each run on one device."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from gpubalance.results.common import (
    Count,
    Number,
    OfDevices,
    Positive,
    Ratio,
    Warning_,
)
from gpubalance.settings.record import Record, Shown


class Try(Record):
    """A command on a device, in seconds since the queue began; `exit` is its exit code.

    `fault` is why there is none: it could not be started, or its process was lost.
    """

    device: Count
    start_s: Annotated[Number, Shown("began at", "s")]
    end_s: Annotated[Number, Shown("ended at", "s")]
    exit: Annotated[Count | None, Shown("exit")]
    fault: str | None = None
    out_of_memory: bool = False

    @property
    def duration_s(self) -> float:
        """How long it ran."""
        return self.end_s - self.start_s


class QueuedCommand(Record):
    """A line of the queue, as typed, and each try of it; none if it was not begun.

    `log` is the file with its output, null if it could not be written. `tail` is the end of what it
    printed if it failed. `resumed`: it ended well before the queue was resumed, and its seconds are
    those of that time.
    """

    number: Count
    command: str
    tries: tuple[Try, ...] = ()
    log: str | None = None
    tail: tuple[str, ...] = ()
    resumed: bool = False

    @property
    def ended_well(self) -> bool:
        """Whether its last try did."""
        return self.resumed or (bool(self.tries) and self.tries[-1].exit == 0)


class RunningCommand(NamedTuple):
    """A command on a device since `began_s` of the monotonic clock, and the last line of it."""

    device: int
    command: QueuedCommand
    began_s: float
    last: str


class QueueShare(Record):
    """What a device did; `speed` is relative to the fastest one's, by its commands or a probe."""

    device: Count
    ended_well: Annotated[Count, Shown("succeeded", brief="succeeded")]
    busy_s: Annotated[Number, Shown("busy", "s", brief="busy")]
    speed: Annotated[Ratio | None, Shown("speed", brief="speed")]


class Queue(OfDevices):
    """Commands that were run on devices, one at a time on each.

    `alone_s` is how long the fastest device would have taken for those that ended well, and
    `speedup` that over the makespan; null if a device's speed is not known. Without `complete`,
    commands are left.
    """

    kind: Literal["queue"] = "queue"
    commands: tuple[QueuedCommand, ...]
    shares: tuple[QueueShare, ...]
    makespan_s: Annotated[Number, Shown(unit="s")]
    alone_s: Annotated[Positive | None, Shown("the fastest alone", "s")]
    speedup: Annotated[Ratio | None, Shown("× the fastest alone")]
    complete: bool
    warnings: tuple[Warning_, ...] = ()

    @property
    def failed(self) -> tuple[QueuedCommand, ...]:
        """The commands that were tried and did not end well."""
        commands = [command for command in self.commands if command.tries]
        return tuple(command for command in commands if not command.ended_well)
