"""The program: its commands, and the one place that turns an error into a message."""

from __future__ import annotations

import atexit
import io
import math
import os
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from gpubalance.cli import complete
from gpubalance.cli.command import (
    COMMANDS,
    GROUPS,
    Command,
    ConfigOption,
    HelpOption,
    Invocation,
)
from gpubalance.cli.next_command import program, resuming, typed, without_option
from gpubalance.cli.output import say
from gpubalance.errors import (
    RESUME,
    BadInput,
    Bug,
    EnvironmentFault,
    GpubalanceError,
    Interrupted,
    TimeLimitPassed,
    UsageError,
    machine_fault,
)
from gpubalance.remedies import match
from gpubalance.text import clean_lines

# Their texts quote what the user wrote, or what a mistake of ours met: that may be anything.
_NOT_LOOKED_UP = (UsageError.exit_code, BadInput.exit_code, Bug.exit_code)
_TIME_LIMIT = "--time-limit"
_OPENED = ("/dev/fd/", "/proc/self/fd/")
# Ending takes a second or two. A second interrupt in that time would only leave a half printed
# result or a worker behind. After this time something hangs, and another interrupt breaks into it.
_ENDS_WITHIN_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED = 128 + int(signal.SIGINT)
# What people look for among the commands, in these words
_OF_A_SCRIPT = ("train", "training", "fit")
_COMPLETION = ("--install-completion", "--show-completion")


class _Program(TyperGroup):
    """The group of all commands, none of which is loaded before it is needed."""

    def __init__(self, **options: Any) -> None:
        options["commands"] = {
            name: Command(name, about, group)
            for group, commands in GROUPS.items()
            for name, about in commands.items()
        }
        super().__init__(**options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raises UsageError for a word such as train: that is done in a script."""
        if args and get_close_matches(args[0], _OF_A_SCRIPT, cutoff=0.8):
            raise UsageError(
                f"gpubalance has no command {args[0]!r}: your own script trains the "
                "model, with the split that gpubalance found",
                remedy="gpubalance guide train",
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="gpubalance",
    cls=_Program,
    help="Measures GPUs of different speed and finds the batch split with which they "
    "finish together.",
    no_args_is_help=True,
    add_help_option=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from gpubalance.cli.version import version_text

        say(version_text(), sys.stdout)
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
        our_error = to_gpubalance_error(error, arguments)
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


def to_gpubalance_error(
    error: Exception, arguments: Sequence[str]
) -> GpubalanceError | None:
    """The error that stands for any: for one of Typer's, and for a bug.

    None for no command at all, when the help was printed.
    """
    if isinstance(error, GpubalanceError):
        return error
    if isinstance(error, TyperException):
        message = error.format_message().rstrip(".")
        if not message:
            return None
        return UsageError(message[0].lower() + message[1:], remedy=_usage(arguments))
    message = f"{type(error).__name__}: {error}"
    fault = machine_fault(error)
    if fault is None:
        our_error: GpubalanceError = Bug(message, report="the output with --verbose")
    else:
        our_error = EnvironmentFault(message, cause=fault.cause, remedy=fault.remedy)
    our_error.__cause__ = error
    return our_error


def _usage(arguments: Sequence[str]) -> str:
    """What to type instead of these arguments, which Typer can't read, or the help to look into."""
    # Of some of its errors Typer does not say it
    if arguments and arguments[0] in COMMANDS:
        return f"{program()} {arguments[0]} --help"
    commands = [word for word in arguments if word in COMMANDS]
    # An option of a command stands before it
    if commands and arguments[0].startswith("-"):
        options = list(arguments)
        options.remove(commands[0])
        reordered = shlex.join([commands[0], *options])
        return f"put it after the command: {program()} {reordered}"
    return f"{program()} --help"


def show_error(error: GpubalanceError, *, verbose: bool) -> int:
    """Prints the error to stderr and returns its exit code."""
    if isinstance(error, Interrupted):
        text = "\n  ".join(str(error).splitlines())
    else:
        _explain(error)
        text = _wrapped(f"error: {error}")
        if error.log and (verbose or error.exit_code not in (2, 4, 5)):
            log = "".join(f"\n  | {line}" for line in error.log.splitlines())
            text += f"\n  the last lines of the worker's log:{log}"
    say(clean_lines(text), sys.stderr)
    if verbose:  # cleaned too: a traceback may quote anybody's text
        say(clean_lines("".join(traceback.format_exception(error))), sys.stderr)
    return error.exit_code


def _wrapped(text: str) -> str:
    """The text with lines that a terminal on stderr does not cut within words.

    Commands stay whole, to be copied.
    """
    from gpubalance.render.table import prose  # here, as most commands meet no error

    if not sys.stderr.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    lines = []
    for line in text.splitlines():
        words = line.lstrip(" →")
        indent = line.removesuffix(words)
        if words.startswith(f"{program()} "):  # a command
            lines.append(line)
        else:
            lines += prose(words, columns, indent, " " * max(2, len(indent)))
    return "\n".join(lines)


def _explain(error: GpubalanceError) -> None:
    """Gives it cause and remedy from the table of known errors if the error itself has none."""
    fault = match(error.message)
    if fault is not None and error.exit_code not in _NOT_LOOKED_UP:
        error.cause = error.cause or fault.cause
        error.remedy = error.remedy or fault.remedy
    if error.cause in error.message:
        error.cause = ""


def name_resuming(error: GpubalanceError, arguments: Sequence[str]) -> None:
    """Puts the full command into an error that --resume can continue.

    A fault of the machine must be fixed first. In place of a time limit that was too short the
    command has one that is enough, if that is known. What a shell has opened, by `<(…)`, can't be
    named.
    """
    if RESUME not in error.remedy or isinstance(error, EnvironmentFault):
        return
    if not any(argument.startswith(_OPENED) for argument in arguments):
        if isinstance(error, TimeLimitPassed):
            arguments = without_option(_TIME_LIMIT, arguments)
            if error.enough_s is not None:  # a config's limit would count without one
                arguments += [_TIME_LIMIT, str(error.enough_s)]
        error.remedy = error.remedy.replace(RESUME, f"{RESUME}:\n{resuming(arguments)}")


class Signalled(KeyboardInterrupt):
    """An interrupt by the signal with that `number`."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class InterruptHandler:
    """Raises Signalled in the main thread; ignores signals that follow soon.

    `number` is the last signal's.
    """

    number: int | None = None
    _raised_s = -math.inf

    def __call__(self, number: int, frame: object) -> None:
        del frame
        now_s = time.monotonic()
        if now_s - self._raised_s > _ENDS_WITHIN_S:
            self.number = number
            self._raised_s = now_s
            raise Signalled(number)


def handle_interrupts() -> InterruptHandler:
    """Handles these signals alike from now on, except those ignored so far, as under nohup."""
    handler = InterruptHandler()
    atexit.register(_ignore_signals)
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
    return handler


def _ignore_signals() -> None:
    # When Python ends, it restores their defaults, and one would kill us though all is done.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
