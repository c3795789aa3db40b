"""The program: its commands, and the one place that turns an error into a message."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from gpubalance.cli import complete
from gpubalance.cli.command import COMMANDS, Command
from gpubalance.cli.config import ConfigOption, HelpOption, Invocation
from gpubalance.cli.failures import handle_interrupts, name_resuming, ours, show_error
from gpubalance.cli.next_command import program, typed
from gpubalance.errors import UsageError

_INTERRUPTED = 128 + int(signal.SIGINT)
# What people look for among the commands, in these words
_OF_A_SCRIPT = ("train", "training", "fit")
_COMPLETION = ("--install-completion", "--show-completion")


class _Program(TyperGroup):
    """The group of all commands, none of which is loaded before it is needed."""

    def __init__(self, **options: Any) -> None:
        options["commands"] = {
            name: Command(name, about) for name, about in COMMANDS.items()
        }
        super().__init__(**options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raises UsageError for a word such as train: that is done in a script."""
        if args and get_close_matches(args[0], _OF_A_SCRIPT, cutoff=0.8):
            raise UsageError(
                f"there is no command {args[0]!r}: your own script trains your model",
                remedy="gpubalance guide train",
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="gpubalance",
    cls=_Program,
    help="Measures unlike GPUs and finds the batch split that makes them finish together.",
    no_args_is_help=True,
    add_help_option=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from gpubalance.cli.version import version_text

        print(version_text())
        raise typer.Exit


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


def _fill_standard_streams() -> None:
    """Opens streams that the caller has closed (`>&-`).

    Otherwise a worker's pipe would get the number of our stdout.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Takes the lowest free number, which is this one
            os.open(os.devnull, os.O_RDWR)
    # They stay open until the process ends.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def main() -> NoReturn:
    """Runs the program. The one place that turns an error into a message and an exit code."""
    interrupts = handle_interrupts()
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
    arguments = sys.argv[1:]
    invocation = Invocation()
    try:
        _refuse_beside_completion(arguments)
        code = app(arguments, program(), standalone_mode=False, obj=invocation)
    except typer.Abort:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001  (a bug says so, and what to report)
        # Typer may not have come to --verbose before it met what it can't read.
        verbose = "--verbose" in arguments or invocation.verbose
        our_error = ours(error, arguments)
        if our_error is None:
            return UsageError.exit_code
        invocation.explain(our_error)
        our_error.remedy = typed(our_error.remedy)
        name_resuming(our_error, arguments)
        return show_error(our_error, verbose=verbose)
    return code if isinstance(code, int) else 0


def _refuse_beside_completion(arguments: Sequence[str]) -> None:
    """Raises UsageError for a word after --install-completion.

    Typer would ignore it and change a file.
    """
    if arguments[1:] and arguments[0].partition("=")[0] in _COMPLETION:
        raise UsageError(
            f"{arguments[0]} takes no arguments", remedy=f"{program()} {arguments[0]}"
        )


def _complete() -> NoReturn:
    """Answers a shell; nothing else may appear in the middle of its line."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # Or Typer wraps descriptions, and fish takes each line for a word.
    os.environ["COLUMNS"] = "10000"
    with suppress(Exception):
        app([], standalone_mode=False)
    sys.exit(0)
