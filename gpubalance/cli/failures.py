"""Shows an error as a person reads it: what happened, where, what to do next."""

from __future__ import annotations

import shlex
import shutil
import sys
import traceback
from collections.abc import Sequence

from typer.exceptions import TyperException

from gpubalance.cli.command import COMMANDS
from gpubalance.cli.next_command import program, resuming
from gpubalance.cli.output import say
from gpubalance.errors import (
    RESUME,
    BadInput,
    EnvironmentFault,
    GpubalanceError,
    Interrupted,
    TimeLimitPassed,
    UsageError,
)
from gpubalance.remedies import match
from gpubalance.text import clean_lines

# Their texts quote what the user wrote, which may be anything.
_OF_THE_USER = (UsageError.exit_code, BadInput.exit_code)
_OPENED = ("/dev/fd/", "/proc/self/fd/")


def ours(error: Exception, arguments: Sequence[str]) -> GpubalanceError | None:
    """Our error for any: for one of Typer's, and for a bug. None for no command at all, when the
    help was printed.
    """
    if isinstance(error, GpubalanceError):
        return error
    if isinstance(error, TyperException):
        said = error.format_message().rstrip(".")
        # Of some of its errors Typer does not say it.
        command = [one for one in arguments[:1] if one in COMMANDS]
        remedy = " ".join([program(), *command, "--help"])
        after = next((number for number, one in enumerate(arguments) if one in COMMANDS), 0)
        if after and arguments[0].startswith("-"):  # an option of a command stands before it
            reordered = [arguments[after], *arguments[:after], *arguments[after + 1 :]]
            remedy = f"put it after the command: {program()} {shlex.join(reordered)}"
        return UsageError(said[0].lower() + said[1:], remedy=remedy) if said else None
    told = f"{type(error).__name__}: {error}"
    row = match(str(error))
    found = GpubalanceError(
        f"a bug in gpubalance: {told}", remedy="report what --verbose adds to this"
    )
    if row is not None:  # a fault of the machine
        found = EnvironmentFault(told, cause=row.cause, remedy=row.remedy)
    found.__cause__ = error
    return found


def show_error(error: GpubalanceError, *, verbose: bool) -> int:
    """Prints the error to stderr and returns its exit code."""
    said = "\n  ".join(str(error).splitlines())
    if not isinstance(error, Interrupted):
        error.cause, error.remedy = _told(error)
        said = _wrapped(f"error: {error}")
        if error.log and (verbose or error.exit_code not in (2, 4, 5)):
            log = "".join(f"\n  | {line}" for line in error.log.splitlines())
            said += f"\n  the end of the worker's log:{log}"
    say(clean_lines(said), sys.stderr)
    if verbose:  # cleaned too: a traceback may quote anybody's text
        say(clean_lines("".join(traceback.format_exception(error))), sys.stderr)
    return error.exit_code


def _wrapped(text: str) -> str:
    """The text with lines that a terminal on stderr does not cut within words; commands stay whole,
    to be copied.
    """
    from gpubalance.render.table import prose  # here, as most commands meet no error

    if not sys.stderr.isatty():
        return text
    columns, lines = shutil.get_terminal_size().columns, []
    for line in text.splitlines():
        start = line.lstrip(" →")
        indent = line[: len(line) - len(start)]
        is_command = start.startswith(f"{program()} ")
        lines += [line] if is_command else prose(start, columns, indent, " " * max(2, len(indent)))
    return "\n".join(lines)


def _told(error: GpubalanceError) -> tuple[str, str]:
    """Its cause and remedy, from the table of known errors if the error itself has none."""
    row = None if error.exit_code in _OF_THE_USER else match(error.message)
    cause = error.cause or (row.cause if row else "")
    return ("" if cause in error.message else cause), error.remedy or (row.remedy if row else "")


def name_resuming(error: GpubalanceError, arguments: Sequence[str]) -> None:
    """Puts the full command into an error that --resume can continue; a fault of the machine must
    be mended first.

    A time limit that was too short is left out of the command. What a shell has opened, by `<(…)`,
    can't be named.
    """
    if not isinstance(error, EnvironmentFault) and not any(
        one.startswith(_OPENED) for one in arguments
    ):
        without = "--time-limit" if isinstance(error, TimeLimitPassed) else None
        error.remedy = error.remedy.replace(RESUME, f"{RESUME}:\n{resuming(arguments, without)}")
