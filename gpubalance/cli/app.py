"""The program: its commands, and the one place that turns an error into a message and an exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from gpubalance.cli import (
    balance,
    compare,
    complete,
    devices,
    doctor,
    guide,
    independent,
    launch,
    layers,
    plan,
    probe,
    report,
    run,
)
from gpubalance.cli.command import Command, Launch
from gpubalance.cli.config import Given
from gpubalance.cli.failures import hide, name_resuming, show_bug, show_error, show_usage
from gpubalance.cli.groups import grouped
from gpubalance.cli.interrupt import handle_interrupts
from gpubalance.cli.next_command import program, typed
from gpubalance.cli.options import CommonOptions, ConfigOption, HelpOption
from gpubalance.errors import GpubalanceError

_INTERRUPTED = 128 + int(signal.SIGINT)

app = typer.Typer(
    name="gpubalance",
    help="Measures unlike GPUs and finds the batch split that makes them finish together.",
    no_args_is_help=True,
    add_help_option=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from gpubalance.cli.version import version_text

        print(version_text())
        raise typer.Exit


@dataclass(frozen=True)
class _ProgramOptions:
    version: Annotated[
        bool, typer.Option("--version", help="Print the versions and exit.", callback=_version, is_eager=True)
    ] = False
    config: ConfigOption = None
    help: HelpOption = False


def _program() -> None:
    pass


app.callback()(grouped(_program, unseen=_ProgramOptions))
for _command in (
    devices.devices,
    probe.probe,
    balance.balance,
    plan.plan,
    run.run,
    independent.independent,
    layers.layers,
    launch.launch,
    compare.compare,
    report.report,
    doctor.doctor,
    guide.guide,
):
    app.command(cls=Launch if _command is launch.launch else Command, add_help_option=False)(
        grouped(_command, unseen=CommonOptions)
    )


def _fill_standard_streams() -> None:
    """Opens streams that the caller has closed (`>&-`), or a worker's pipe would get the number of our stdout."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  (open until the process ends)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def main() -> NoReturn:
    """Runs the program. The one place that turns an error into a message and an exit code."""
    interrupts = handle_interrupts()
    try:
        code = _run()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    if code == _INTERRUPTED and interrupts.number is not None:  # Typer takes every interrupt for a Ctrl-C
        code = 128 + interrupts.number
    sys.exit(code)


def _run() -> int:
    _fill_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows only ASCII shows a ? for a µ
    if complete.is_asked():
        _complete()
    arguments = sys.argv[1:]
    given = Given()
    try:
        code = app(arguments, program(), standalone_mode=False, obj=given)
    except GpubalanceError as error:
        given.explain(error)
        error.remedy = typed(error.remedy, given.simulate)
        name_resuming(error, arguments)
        if given.switched("redact"):
            hide(error)
        return show_error(error, verbose=_verbose(arguments, given))
    except TyperException as error:
        return show_usage(error, given.place_of(error))
    except typer.Abort:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001  (a bug: it says so, and what to report)
        return show_bug(error, verbose=_verbose(arguments, given))
    return code if isinstance(code, int) else 0


def _verbose(arguments: list[str], given: Given) -> bool:
    """Whether --verbose is on; also searches the command line itself, which may be unreadable."""
    return "--verbose" in arguments or given.switched("verbose")


def _complete() -> NoReturn:
    """Answers a shell; nothing else may appear in the middle of its line."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.environ["COLUMNS"] = "10000"  # or Typer wraps descriptions, and fish takes each line for a word
    with suppress(Exception):
        app([], standalone_mode=False)
    sys.exit(0)


if __name__ == "__main__":
    main()
