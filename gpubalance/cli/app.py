"""The program: its commands, how an interrupt reaches a job, and the one place that turns an error
into a message.
"""

from __future__ import annotations

import atexit
import io
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from gpubalance.cli import complete
from gpubalance.cli.command import COMMANDS, Command
from gpubalance.cli.config import ConfigOption, Given, HelpOption
from gpubalance.cli.failures import name_resuming, ours, show_error
from gpubalance.cli.next_command import program, typed
from gpubalance.errors import UsageError

# Ending takes a second or two. A second interrupt in that time would only leave a half printed
# result or a worker behind. After this time something hangs, and another interrupt breaks into it.
_ENDS_WITHIN_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED = 128 + int(signal.SIGINT)
_COMPLETION = ("--install-completion", "--show-completion")


class _Program(TyperGroup):
    """The group of all commands, none of which is loaded before it is needed."""

    def __init__(self, **given: Any) -> None:
        given["commands"] = {name: Command(name, about) for name, about in COMMANDS.items()}
        super().__init__(**given)


app = typer.Typer(
    name="gpubalance",
    cls=_Program,
    help="Measures unlike GPUs and finds the batch split that makes them finish together.",
    no_args_is_help=True,
    add_help_option=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(_version_text())
        raise typer.Exit


def _version_text() -> str:
    """One line for each program that a report of a fault needs. It never fails."""
    import platform

    from gpubalance._version import __version__
    from gpubalance.devices.gpus import Reading
    from gpubalance.devices.nvml import read
    from gpubalance.system.deadlines import within_or
    from gpubalance.system.versions import software

    found, driver = (
        software(),
        within_or(Reading(problem="NVML does not answer"), lambda: read(gpus=False)),
    )
    without = (driver.problem or "it does not tell its version").removeprefix("no NVIDIA driver: ")
    built = f"built for CUDA {found.cuda}, cuDNN {found.cudnn or 'of unknown version'}"
    tensorflow = f"{found.tensorflow}, {built if found.cuda else 'built without CUDA'}"
    if driver.driver_version:
        most = driver.cuda_driver_version or "of unknown version"
        of_driver = f"driver {driver.driver_version}, up to CUDA {most}"
    else:
        of_driver = f"no driver: {without}"
    return "\n".join(
        [
            f"gpubalance {__version__}",
            f"Python {platform.python_version()}",
            f"TensorFlow {tensorflow if found.tensorflow else 'is not installed'}",
            f"Keras {found.keras or 'is not installed'}",
            of_driver,
        ]
    )


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            help="Print the versions and exit.",
            callback=_version,
            is_eager=True,
        ),
    ] = False,
    config: ConfigOption = None,
    help: HelpOption = False,
) -> None:
    pass


class _Signalled(KeyboardInterrupt):
    """An interrupt by the signal with that `number`."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class _Handler:
    """Raises _Signalled in the main thread; ignores signals that follow soon. `number` is the last
    signal's.
    """

    number: int | None = None
    _raised_s = -math.inf

    def __call__(self, number: int, frame: object) -> None:
        del frame
        if time.monotonic() - self._raised_s > _ENDS_WITHIN_S:
            self.number, self._raised_s = number, time.monotonic()
            raise _Signalled(number)


def _handle_interrupts() -> _Handler:
    """Handles all these signals alike from now on. Those ignored so far, as under nohup, stay
    ignored.
    """
    handler = _Handler()
    atexit.register(_ignore_them)
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
    return handler


def _ignore_them() -> None:
    """Ignores the signals: when Python ends, it restores their defaults, and one would kill us
    though all is done.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _fill_standard_streams() -> None:
    """Opens streams that the caller has closed (`>&-`), or a worker's pipe would get the number of
    our stdout.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  (open until the process ends)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def main() -> NoReturn:
    """Runs the program. The one place that turns an error into a message and an exit code."""
    interrupts = _handle_interrupts()
    try:
        code = _run()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    # Typer takes every interrupt for a Ctrl-C.
    if code == _INTERRUPTED and interrupts.number is not None:
        code = 128 + interrupts.number
    sys.exit(code)


def _run() -> int:
    _fill_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that knows only ASCII shows a ? for a µ.
            stream.reconfigure(errors="replace")
    if complete.is_asked():
        _complete()
    arguments, given = sys.argv[1:], Given()
    try:
        _refuse_beside_completion(arguments)
        code = app(arguments, program(), standalone_mode=False, obj=given)
    except typer.Abort:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001  (a bug says so, and what to report)
        verbose = "--verbose" in arguments or given.verbose  # the line itself may be unreadable
        found = ours(error, arguments)
        if found is None:
            return UsageError.exit_code
        given.explain(found)
        found.remedy = typed(found.remedy)
        name_resuming(found, arguments)
        return show_error(found, verbose=verbose)
    return code if isinstance(code, int) else 0


def _refuse_beside_completion(arguments: Sequence[str]) -> None:
    """Raises UsageError for a word after --install-completion, before Typer, which ignores it,
    changes a file.
    """
    if arguments[1:] and arguments[0].partition("=")[0] in _COMPLETION:
        raise UsageError(
            f"{arguments[0]} takes nothing beside it", remedy=f"{program()} {arguments[0]}"
        )


def _complete() -> NoReturn:
    """Answers a shell; nothing else may appear in the middle of its line."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # Or Typer wraps descriptions, and fish takes each line for a word.
    os.environ["COLUMNS"] = "10000"
    with suppress(Exception):
        app([], standalone_mode=False)
    sys.exit(0)


if __name__ == "__main__":
    main()
