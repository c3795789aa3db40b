"""Runs the program on a machine with faults.

Only NVML shows its GPUs, and its engine fails on command.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cli.program import gpubalance, here, start
from tests.stand_in import TWO_UNLIKE_GPUS, engine, environment

TI = "GPU-1080aaaa-0000-4000-8000-000000000001"
PLAIN = "GPU-1080bbbb-0000-4000-8000-000000000002"
FIVE_GPUS = TWO_UNLIKE_GPUS + "".join(  # three more like the second
    line.replace("gpu 1", f"gpu {number}")
    .replace("1080bbbb", f"1080bbb{number}")
    .replace(":02:", f":0{number + 1}:")
    for number in (2, 3, 4)
    for line in TWO_UNLIKE_GPUS.splitlines(keepends=True)
    if line.startswith("gpu 1")
)
BRIEF = ("--windows", "1", "--duration", "0.3")
# 32 samples fit on each, and no more.
HOLDS_32 = """
def holds(device, size):
    return size <= 32

def needs(device, batch):
    return (16 + batch) << 20
"""
# The worker notes its process id when the model is built.
NOTES = """
def built(devices):
    note()
"""
# Every script may use these: a note of its worker's process id for the test, and a hang like
# TensorFlow's, which holds the interpreter's lock and ignores TERM.
_ALWAYS = """
import ctypes, os, pathlib, shutil, signal, time
import tensorflow as tf

def note():
    with open({notes!r}, "a") as file:
        print(os.getpid(), file=file)

def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.PyDLL(None).sleep(600)
"""


def in_step(act: str, when: str = "True") -> str:
    """A script of the engine that does something at each timing for which `when` holds."""
    return f"""
def step(devices, batches, number):
    if {when}:
        {act}
"""


class Machine:
    """A machine whose NVML answers by `gpus` and its engine by `steps`.

    `extra` has more variables for the program.
    """

    def __init__(
        self, folder: Path, steps: str = "", gpus: str = TWO_UNLIKE_GPUS, **extra: str
    ) -> None:
        self._notes = folder / "notes"
        script = _ALWAYS.format(notes=str(self._notes)) + steps
        self.environment = environment(folder, gpus) | engine(folder, script) | extra

    @property
    def variables(self) -> dict[str, str]:
        """All variables of a process on this machine, whose user hides no GPU."""
        hidden = ("CUDA_VISIBLE_DEVICES", "NO_COLOR", "COLUMNS")
        shown = [name for name in os.environ if name not in hidden]
        return {name: os.environ[name] for name in shown} | self.environment

    def runs(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Runs the program, which must end with that code and print no traceback."""
        return here(*arguments, code=code, environment=self.environment)

    def runs_apart(self, *arguments: str, code: int = 0) -> Any:
        """Does the same in its own process, which finds the files of another started one.

        Their names depend on the libraries that a process finds.
        """
        return gpubalance(*arguments, code=code, environment=self.environment)

    def result(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """The JSON of a command, which must end with that code."""
        done = self.runs(*arguments, "--json", code=code)
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def refuses(self, code: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command that must end with that code and print no result."""
        done = self.runs(*arguments, code=code)
        assert done.stdout == ""
        return done

    @contextmanager
    def starts(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Starts the program, and kills it at the end of the block."""
        process = start(*arguments, environment=self.environment)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def noted(self) -> list[int]:
        """The ids of the processes that have called `note()`."""
        if not self._notes.exists():
            return []
        return [int(line) for line in self._notes.read_text().split()]

    def wait_for_note(self) -> int:
        """Waits for the first process that calls `note()`, and returns its id."""
        end = time.monotonic() + 60
        while not self.noted() and time.monotonic() < end:
            time.sleep(0.02)
        return self.noted()[0]


def codes_of(result: dict[str, Any]) -> list[str]:
    """The codes of a result's warnings."""
    return [warning["code"] for warning in result["warnings"]]


def warning_of(result: dict[str, Any], code: str) -> Any:
    """The one warning of that code."""
    (found,) = [one for one in result["warnings"] if one["code"] == code]
    return found


def first_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.splitlines()[0]
