"""What starts a training script on its host: behind the prefix that reaches another one, and without one on this.

It and the controller say to each other what an agent says. Of the lines to the controller those that begin with a space
are the script's own; its stderr is the script's. When the controller is gone, or has said nothing for half a minute, it
ends the script and itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from codecs import getincrementaldecoder
from collections.abc import Sequence
from io import IncrementalNewlineDecoder
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from gpubalance.devices.cluster import tf_config
from gpubalance.devices.hosts import Installed
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, Host
from gpubalance.settings.record import Record
from gpubalance.workers.agent import (
    MARK,
    Controller,
    Ended,
    Hello,
    Listens,
    end,
    free_port,
    heard,
    kill,
    said,
    signal_group,
)
from gpubalance.workers.environment import worker_environment
from gpubalance.workers.parent import die_with_parent

# One that waits in a collective ends by KILL only.
GRACE_S = 3.0
SCRIPTS = b" "


class Begin(Record):
    """What it is told first: a script's name and words, for a process with these devices.

    It begins in the controller's `folder` where the host has that too. `host` is null on the controller's own.
    """

    host: Host | None
    devices: tuple[Device, ...]
    folder: str
    command: Annotated[tuple[str, ...], Field(min_length=1)]


class Absent(Record):
    """There is no such script in that folder, in which it was looked for."""

    kind: Literal["absent"] = "absent"
    folder: str


SAYS: TypeAdapter[Hello | Listens | Absent | Ended] = TypeAdapter(
    Annotated[Hello | Listens | Absent | Ended, Field(discriminator="kind")]
)
# What it is told next: its place, or null for a process that is alone.
PLACE: TypeAdapter[Cluster | None] = TypeAdapter(Cluster | None)


def main() -> None:
    """Runs the script until it ends, and waits for the controller to go."""
    controller = Controller()
    controller.say(Hello(installed=Installed.here()))
    lines = heard(0)
    first = next(lines, None)
    if first is None:
        return
    begin = Begin.model_validate_json(first)
    with contextlib.suppress(OSError):
        os.chdir(begin.folder)
    if not Path(begin.command[0]).is_file():
        controller.say(Absent(folder=str(Path.cwd())))
        return
    with free_port(begin.host) as address:  # until all have theirs, so that no two get the same
        controller.say(Listens(address=address))
        place = next(lines, None)
    if place is None:
        return
    script = _start(begin.command, begin.devices, PLACE.validate_json(place))
    signal.signal(signal.SIGTERM, lambda *_: kill(script))
    controller.hear_of(script, lambda: _relay(script, controller))
    try:
        for line in lines:
            signal_group(script, int(line.removeprefix(MARK)))
            threading.Timer(GRACE_S, signal_group, (script, signal.SIGKILL)).start()
    finally:
        end(script)


def _start(command: Sequence[str], devices: Sequence[Device], cluster: Cluster | None) -> subprocess.Popen[bytes]:
    """A process that sees its devices, knows its place, and ends with this one."""
    return subprocess.Popen(  # noqa: S603  (no shell: the words are the user's own command line)
        [sys.executable, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=worker_environment(devices) | (tf_config(cluster) if cluster else {}),
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def _relay(script: subprocess.Popen[bytes], controller: Controller) -> None:
    assert script.stdout is not None  # noqa: S101  (it is a pipe)
    decoder = IncrementalNewlineDecoder(getincrementaldecoder("utf-8")("replace"), translate=True)
    rest = ""
    for chunk in said(script, script.stdout.fileno()):
        *lines, rest = (rest + decoder.decode(chunk)).split("\n")
        controller.pass_on(b"".join(SCRIPTS + line.encode() + b"\n" for line in lines))
    if rest := rest + decoder.decode(b"", final=True):
        controller.pass_on(SCRIPTS + rest.encode() + b"\n")
