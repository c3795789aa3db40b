"""Where a step runs: on this machine's GPUs or, in a rehearsal without any, on other devices.

Those are simulated devices and plain CPU devices.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from gpubalance.devices.machine import read_gpus
from gpubalance.devices.nvml import with_gpu
from gpubalance.devices.profile import simulated_devices
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.settings import Settings
from tests.cli.program import QUICK_PAIR, TINY, start
from tests.support.as_worker import show

if TYPE_CHECKING:
    from gpubalance.engine.session import Session

# More variables for the program, as JSON.
# The tests give its workers an engine that needs no TensorFlow.
PROGRAM_VARIABLES = "GPUBALANCE_BENCH_PROGRAM"


class StepFailed(Exception):
    """A step did not get what it needs."""


class Figure(NamedTuple):
    """A finding: `value` is for the JSON, `told` a phrase for the table."""

    name: str
    value: Any
    told: str


class Done(NamedTuple):
    """How a command ended. `out` is its JSON, None if it printed none."""

    code: int
    out: Any
    err: str


@dataclass(frozen=True)
class Place:
    """The devices, a folder for a step's files, and when its time ends, on the monotonic clock.

    A step that is rehearsed is a small one: it shows only that it works.
    """

    folder: Path
    cards: tuple[Device, ...]
    rehearsed: bool
    until_s: float = float("inf")
    _done: dict[tuple[str, ...], Done] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        """The seconds left of the step's time."""
        return max(1.0, self.until_s - time.monotonic())

    @property
    def model(self) -> str:
        """The model that the program trains."""
        if not self.rehearsed:
            return "probe"
        return "small" if self.cards else TINY

    def devices(self, count: int) -> tuple[Device, ...]:
        """Devices for this process's own TensorFlow: the first GPUs, or plain CPU devices."""
        return self.cards[:count] or simulated_devices(count)[0]

    def options(self, count: int) -> tuple[str, ...]:
        """The program's options for the first GPUs, or for simulated devices."""
        gpus = [str(device.index) for device in self.cards[:count]] or map(
            str, range(count)
        )
        return *(() if self.cards else ("--simulate", QUICK_PAIR)), "--gpus", *gpus

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts `gpubalance ARGUMENTS` in the step's process group.

        The group ends with the step's time.
        """
        more = json.loads(os.environ.get(PROGRAM_VARIABLES, "{}"))
        return start(
            *arguments,
            cwd=self.folder,
            environment={**os.environ, "COLUMNS": "100", **more},
        )

    def program(self, *arguments: str, codes: Sequence[int] = (0,)) -> Done:
        """Runs that to its end; a rehearsal, which measures nothing, runs equal commands only once.

        Raises StepFailed if it ends with another exit code than these.
        """
        if self.rehearsed and arguments in self._done:
            return self._done[arguments]
        self._done[arguments] = ended(
            self.start(*arguments, "--json"), arguments, codes
        )
        return self._done[arguments]

    def session(self, simulate: str = "1", **settings: Any) -> Session:
        """The engine in this process, as in a worker, with these settings.

        It is on the first GPU or, without one, on a simulated device.

        Nothing else here loads TensorFlow.
        """
        devices = self.cards[:1] or simulated_devices(simulate)[0][:1]
        show(devices)
        from gpubalance.engine.session import Session

        return Session(
            devices,
            Settings(**{"model": self.model, **settings}),
            JointProfile(),
            seed=0,
        )

    def free_bytes(self) -> tuple[int, ...] | None:
        """Each GPU's free memory by NVML; None without GPUs."""

        told = [
            with_gpu(card.uuid, lambda gpu: int(gpu.ask("MemoryInfo").free))
            for card in self.cards
        ]
        return tuple(line for line in told if line is not None) or None


def ended(
    process: subprocess.Popen[str],
    arguments: Sequence[str],
    codes: Sequence[int] = (0,),
) -> Done:
    """Waits for a process, and passes on what it says.

    Raises StepFailed if it ends with another exit code than these.
    """
    assert process.stdout
    assert process.stderr
    told: list[str] = []
    passing = Thread(target=_pass_on, args=(process.stderr, told), daemon=True)
    passing.start()
    out = process.stdout.read()
    process.wait()
    passing.join()
    err = "".join(told)
    if process.returncode not in codes:
        why = next(
            (line for line in err.splitlines() if line.startswith("error")),
            err.strip()[-200:],
        )
        raise StepFailed(
            f"gpubalance {arguments[0]} ended with {process.returncode}: {why}"
        )
    return Done(
        process.returncode,
        json.loads(out) if out.lstrip().startswith("{") else None,
        err,
    )


def _pass_on(lines: Iterable[str], told: list[str]) -> None:
    """At once, so that the log of a step that is cut off tells what it was at."""
    for line in lines:
        told.append(line)
        sys.stderr.write(line)
        sys.stderr.flush()


def usable_gpus() -> tuple[Device, ...]:
    """The usable GPUs; in a process that sees parts, the parts of one."""
    return tuple(device for gpu in read_gpus().gpus for device in gpu.devices)
