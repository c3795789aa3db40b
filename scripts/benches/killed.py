"""The program that the campaign of kills runs and kills, with steps of 40 ms."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_result
from gpubalance.results.run import Run
from tests.cli.program import TINY, lives, start

# Of a probe (fits, fails) of each device, of the others each device's batch.
Found = tuple[tuple[int | None, int | None], ...] | tuple[int, ...]

# GPU:0 holds 32 samples but not 40, GPU:1 24 but not 32, and the largest batches are the fastest by
# far. So probe and balance end with the same answer even on a busy machine, where other work would
# dominate a step of a millisecond.
_DEVICE = (
    '[[device]]\nname = "Fast {}"\nalpha_s = 0.04\nbeta_s = {}\nmemory = "{} MiB"\n'
    'base_memory = "16 MiB"\nmemory_per_sample = "1 MiB"\n'
)
PROFILE = _DEVICE.format("A", 0.00002, 50) + _DEVICE.format("B", 0.00004, 42)

PROBE = ("probe", "--duration", "0.05")
# The same devices without TensorFlow, whose loading takes most of a command's time; see
# tests/stand_in/session.py. Each worker has a speed of its own, so that what is measured anew is
# told with other figures.
ENGINE = """
import random, time

_SPEED = random.uniform(0.98, 1.02)

def holds(device, size):
    return size <= (32, 24)[device.index]

def needs(device, batch):
    return (16 + batch) << 20

def step(devices, batches, number):
    time.sleep(0.004)
    return 0.004 * _SPEED
"""
_SHORT = ("--duration", "0.2")
_ROUNDS = ("--rounds", "2", "--round-duration", "0.2", "--windows", "2")
COMMANDS = {
    "probe": (*PROBE, "--gpus", "0"),
    "balance": ("balance", "--accumulate", "off", *_ROUNDS, *_SHORT),
    "run": ("run", "--batches", "8", "8", *_SHORT, "--windows", "12"),
}
SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
VICTIMS = ("parent", "worker")
_MARK = "GPUBALANCE_CAMPAIGN"
_LASTS_AT_MOST_S = 300.0


class Kill(NamedTuple):
    """What is killed, after this `part` of the time that an undisturbed command takes."""

    command: str
    victim: str
    number: signal.Signals
    part: float

    def __str__(self) -> str:
        return f"{self.command}, {self.number.name} to the {self.victim} at {self.part:.3f}"


class Program:
    """One run of the program in its own folder. All its processes carry a unique mark."""

    def __init__(
        self, folder: Path, variables: Mapping[str, str], *arguments: str
    ) -> None:
        self.folder, self.variables, self.output = (
            folder,
            variables,
            folder / f"{uuid.uuid4().hex}.json",
        )
        (folder / "fast.toml").write_text(PROFILE)
        self._began, self.elapsed_s = time.monotonic(), 0.0
        own = {
            "XDG_STATE_HOME": str(folder / "state"),
            "TMPDIR": str(folder),
            _MARK: self.output.name,
        }
        of_pair = (
            "--simulate",
            "fast.toml",
            "--model",
            TINY,
            "-o",
            str(self.output),
            "--json",
        )
        self.process = start(
            *arguments, *of_pair, cwd=folder, environment={**variables, **own}
        )

    def processes(self) -> list[psutil.Process]:
        """All living processes with the mark; a zombie counts as dead."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.environ().get(_MARK) == self.output.name and lives(process):
                    found.append(process)
        return found

    def wait(self) -> tuple[str, str]:
        """Waits until it ends by itself, sets `elapsed_s`, and returns what it printed."""
        printed = self.process.communicate(timeout=_LASTS_AT_MOST_S)
        self.elapsed_s = time.monotonic() - self._began
        return printed

    def kill(self, victim: str, number: signal.Signals) -> bool:
        """Kills the victim, waiting for a worker that has not started yet.

        False if there was nobody to kill.
        """
        while self.process.poll() is None:
            # Agents are no victims.
            others = [
                p.pid
                for p in self.processes()
                if self.process.pid not in (p.pid, p.ppid())
            ]
            chosen = [self.process.pid] if victim == "parent" else sorted(others)
            with suppress(ProcessLookupError):
                if chosen:
                    os.kill(chosen[0], number)
                    return True
            time.sleep(0.02)
        return False

    @property
    def found(self) -> Found | None:
        """What it wrote as a whole result: a probe's limits, or the split that was run.

        None if the result is not whole.
        """
        result = read_result(self.output) if self.output.exists() else None
        if isinstance(result, Probe):
            limits = [probe.batch_limit for probe in result.probes]
            return (
                tuple((limit.fits, limit.fails) for limit in limits if limit)
                if result.complete
                else None
            )
        run = (
            result.balance.run
            if isinstance(result, Plan) and result.balance
            else result
        )
        return run.batches if isinstance(run, Run) and run.complete else None
