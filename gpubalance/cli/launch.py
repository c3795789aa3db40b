"""`gpubalance launch`."""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubalance.cli.options import Devices, DryStart
from gpubalance.cli.parameters import Without
from gpubalance.errors import UsageError
from gpubalance.settings.requests import Launching
from gpubalance.text import clean, is_utf8

if TYPE_CHECKING:
    from gpubalance.results.plan import Plan

PlanFile = Annotated[
    Path,
    typer.Argument(metavar="PLAN.json", help="A plan, from `balance -o` or `plan -o`."),
]
Script = Annotated[
    Path,
    typer.Argument(
        metavar="SCRIPT.py", help="Your training script, which loads that plan."
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGS...", help="The script's arguments."),
]


def launch(
    plan: PlanFile,
    script: Script,
    devices: Annotated[Devices, Without("gpus", "simulate", "time_scale")],
    how: Launching,
    dry: DryStart,
    arguments: Arguments = None,
) -> None:
    """Over several hosts, each device has a process of its own.

    Hosts are reached as they were for the plan; if you used --via then, give it again.

    Example: gpubalance launch plan.json train.py
    """
    from gpubalance.cli.output import say
    from gpubalance.devices.hosts import are_reached
    from gpubalance.devices.selection import reach_planned, refuse_table
    from gpubalance.jobs.launch import launch as launch_job
    from gpubalance.results.plan import Plan
    from gpubalance.results.records import read_record

    if plan.suffix == ".py" and script.suffix == ".json":
        raise UsageError(
            "the plan comes first, then the script",
            remedy="gpubalance launch "
            + shlex.join([str(script), str(plan), *(arguments or [])]),
        )
    planned = read_record(plan, Plan)
    refuse_table(planned)
    reach_planned(planned, devices.hosts, devices.via)
    if str(script).startswith("-"):
        raise UsageError(
            f"{script} comes after the plan, where the script belongs",
            remedy="put launch's own options before PLAN.json",
        )
    if not are_reached() and not script.is_file():
        raise UsageError(
            f"the script {script} does not exist",
            remedy="give the path of your training script",
        )
    command = [str(script), *(arguments or [])]
    for word in command:
        if not is_utf8(word):
            raise UsageError(
                f"the script or its argument {clean(repr(word))} is not UTF-8",
                remedy="use only UTF-8 in the script's path and arguments",
            )
    if dry.dry_run:
        say(_would_start(planned, command), sys.stdout)
        return
    one_at_a_time = threading.Lock()

    def print_line(line: str, label: str, stream: str) -> None:
        """Prints the script's line unchanged, behind the name of its device."""
        with one_at_a_time:
            say(f"{label} | {line}", sys.stdout if stream == "stdout" else sys.stderr)

    code = launch_job(planned, command, print_line, how)
    if code:
        raise typer.Exit(code)


def _would_start(plan: Plan, command: Sequence[str]) -> str:
    """Each process that would be started, with its devices and their samples."""
    from gpubalance.cli.output import width
    from gpubalance.jobs.launch import processes_of
    from gpubalance.render.table import prose

    lines = [f"python {clean(shlex.join(command))}"]
    processes = processes_of([plan.devices[number] for number in plan.split.used])
    samples = iter(plan.split.without_idle.batches)
    for number, devices in enumerate(processes, 1):
        shares = [
            f"{device.label} {device.name}, {next(samples)} samples"
            for device in devices
        ]
        lines += prose(f"process {number}: {'; '.join(shares)}", width(), "  ", "    ")
    lines.append("nothing was started")
    return "\n".join(lines)
