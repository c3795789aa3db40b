"""What a stage tells while it works. The command line shows it; nothing waits for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpubalance.config import Device
from gpubalance.results.run import Measurement


@dataclass(frozen=True)
class Doing:
    """What is done now, and why."""

    text: str


@dataclass(frozen=True)
class WindowDone:
    """A window of steps is measured. `name` says of which split: "even" or "" for the run's own."""

    number: int
    of: int
    name: str
    devices: tuple[Device, ...]
    measurement: Measurement


Event = Doing | WindowDone
Watch = Callable[[Event], None]
