"""The program: its commands, and what happens to an error that nobody caught."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from gpubalance import __version__
from gpubalance.cli import balance, compare, devices, plan, probe, run
from gpubalance.cli.failures import show_bug, show_error, show_usage
from gpubalance.cli.lists import join_lists
from gpubalance.errors import GpubalanceError

app = typer.Typer(
    name="gpubalance",
    help="Measures unlike GPUs and finds the batch split that makes them finish together.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gpubalance {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command(name="devices")(devices.devices)
app.command(name="probe")(probe.probe)
app.command(name="balance")(balance.balance)
app.command(name="plan")(plan.plan)
app.command(name="run")(run.run)
app.command(name="compare")(compare.compare)


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled as Ctrl-C is: children end, and what was measured is kept."""

    number = int(signal.SIGTERM)


def _terminate(number: int, frame: object) -> NoReturn:
    del number, frame
    raise Terminated


def _fill_standard_streams() -> None:
    """Opens what the caller has closed (`>&-`): a pipe to a child must not get the number of our stdout."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  (for the life of the process)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def main() -> NoReturn:
    """The one place that turns an error into a message and an exit code."""
    _fill_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows only ASCII shows a ? for a µ
    signal.signal(signal.SIGTERM, _terminate)
    arguments = sys.argv[1:]
    verbose = "--verbose" in arguments
    try:
        code = app(join_lists(arguments), standalone_mode=False)
    except GpubalanceError as error:
        code = show_error(error, verbose=verbose)
    except TyperException as error:
        code = show_usage(error)
    except (typer.Abort, KeyboardInterrupt) as interrupt:
        code = 128 + getattr(interrupt, "number", int(signal.SIGINT))
    except Exception as error:  # noqa: BLE001  (a bug: said so, with what to report)
        code = show_bug(error, verbose=verbose)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
