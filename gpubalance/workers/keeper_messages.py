"""The messages between a keeper, which starts and ends a process, and its parent.

parent                          keeper
                                Hello
Start                      →    Printed … of a script; what a worker says; Ended at last
"""

from __future__ import annotations

from typing import Literal

from gpubalance.settings.cluster import Address
from gpubalance.settings.record import Record


class Hello(Record):
    """Where the process may listen for its peers, and on another host what is installed there."""

    address: Address
    installed: dict[str, str | None] | None


class Start(Record):
    """Start a worker, or Python with these words, in that folder if the host has it.

    It has these variables besides; one that is None is taken away.
    """

    environment: dict[str, str | None]
    folder: str
    words: tuple[str, ...] = ()


class Printed(Record):
    """A line that a script has printed, or a TrainingProgress that its split reports."""

    stream: Literal["stdout", "stderr", "report"]
    text: str


class Ended(Record):
    """The exit code; below 0 it is the number of a signal."""

    code: int


FromScript = Printed | Ended
