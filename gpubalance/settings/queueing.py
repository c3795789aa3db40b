"""What `gpubalance queue` runs, and how."""

from __future__ import annotations

from pathlib import Path

from gpubalance.settings.device import Device
from gpubalance.settings.options import queue_option
from gpubalance.settings.record import Record


class Queueing(Record):
    """How a queue runs its commands.

    With `pull` each free device takes the next command, however slow it is. Their output goes to
    files in `logs`; null for a folder of gpubalance's own. With `resume` those that succeeded in an
    earlier run are not run again.
    """

    logs: Path | None = queue_option(
        "--logs DIR", "Write the output of each command to DIR/NNN.log."
    )
    resume: bool = queue_option(
        "--resume",
        "Run only the commands that did not succeed in an earlier run.",
        default=False,
    )
    pull: bool = queue_option(
        "--pull",
        "Give each free device the next command at once, however slow the device is.",
        default=False,
    )


class QueueRequest(Queueing):
    """Commands for a shell from the file `source`, each to be run on one of these devices."""

    devices: tuple[Device, ...]
    commands: tuple[str, ...]
    source: str
