"""Where a result goes: stdout as text or JSON, and a file. Both are checked before anything is
measured.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gpubalance.errors import EnvironmentFault, GpubalanceError, UsageError
from gpubalance.text import clean

if TYPE_CHECKING:
    from gpubalance.cli.next_command import Following
    from gpubalance.cli.options import Reporting
    from gpubalance.jobs.keep.journal import Journal
    from gpubalance.render.table import Part
    from gpubalance.results.common import Warning_

_ROOM = 1 << 18  # bytes; a result takes some ten thousand


class Output:
    """Where the options of a command want its result: on stdout, and in a file, written whole or
    not at all.

    `quiet`: stderr gets no progress, so no empty line separates the result from it. A resumed
    command may replace its own unfinished result; every command may replace an estimate. Raises
    UsageError if the file exists, EnvironmentFault if it can't be written.
    """

    def __init__(self, asked: Reporting, *, quiet: bool, resumed: bool = False) -> None:
        from gpubalance.results.records import is_estimate

        self._asked, self._quiet, self._path = asked, quiet, asked.output
        self._goes_on = False
        self._replaces = asked.overwrite or (self._path is not None and is_estimate(self._path))
        if self._path is not None:
            self._goes_on = not self._replaces and resumed and _is_unfinished(self._path)
            self._replaces |= self._goes_on
            check_file("-o", self._path, overwrite=self._replaces)

    def check_goes_on(self, journal: Journal) -> None:
        """Raises UsageError if the unfinished result in the file is of another command, model or
        settings.
        """
        if self._goes_on and not journal.resumed:
            raise _exists("-o", self._path)

    @contextlib.contextmanager
    def left_by_an_error(
        self, text: Callable[[Any], str], noted: Sequence[Warning_] = ()
    ) -> Iterator[None]:
        """If the block raises an error with a partial result, outputs that and raises
        the error on.
        """
        try:
            yield
        except GpubalanceError as error:
            if error.partial is not None:
                self.give(error.partial, text, noted)
            raise

    def give(
        self,
        result: Any,
        text: Callable[[Any], str],
        noted: Sequence[Warning_] = (),
        journal: Journal | None = None,
    ) -> Any:
        """Writes the result, then prints it as JSON or as `text`; the `noted` warnings come before
        its own.

        Returns it with these warnings. If nobody reads it, the measurement's `journal` is kept. If
        it can't be written, prints it all the same and raises EnvironmentFault. An empty text is
        not printed.
        """
        if noted:
            result = result.model_copy(update={"warnings": (*noted, *result.warnings)})
        shown, document = text(result), result.model_dump_json(indent=2)
        self._say_beside("")
        try:
            if self._path is not None:
                if self._path.exists() and not self._replaces:
                    message = f"{self._path} was made by another program meanwhile"
                    raise EnvironmentFault(message, remedy="the result is on stdout")
                write_file("-o", self._path, document + "\n", "the result is on stdout; ")
        finally:
            said = say(document if self._asked.as_json else shown, sys.stdout)
        if not said and self._path is None and journal is not None:
            journal.stays = True
            self._say_beside(
                "nobody reads stdout any more: the same command with --resume gives the result"
            )
        return result

    def _say_beside(self, text: str) -> None:
        if not self._quiet:
            say(text, sys.stderr)


def width() -> int:
    """The columns for a summary on stdout: a narrow terminal's own, otherwise 80."""
    from gpubalance.render.table import WIDTH

    return (
        min(WIDTH, shutil.get_terminal_size((WIDTH, 0)).columns) if sys.stdout.isatty() else WIDTH
    )


def summed_up(result: Any, told: Iterable[Part], following: Following) -> str:
    """What is told of a result, the warnings of it and of its proof, and what can follow, as this
    user types it.
    """
    from gpubalance.cli.next_command import typed
    from gpubalance.render.table import summary
    from gpubalance.results.subject import warnings_of

    return summary(told, warnings_of(result), *following, width(), typed)


def say(text: str, stream: TextIO) -> bool:
    """Prints a text. Returns False if its reader has gone, which must not fail a measurement."""
    try:
        print(text, end="\n" if text or stream is sys.stderr else "", file=stream, flush=True)
        return True
    except OSError as error:
        # Python flushes it once more when it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if stream is sys.stdout and not isinstance(error, BrokenPipeError):
            raise EnvironmentFault(f"can't write to stdout: {error.strerror}") from None
        return False


def _is_unfinished(path: Path) -> bool:
    """Whether the file holds an unfinished result of an interrupted command."""
    from gpubalance.results.records import read_reported

    try:
        found = read_reported(path)
    except GpubalanceError:
        return False
    return not found.complete


def check_file(option: str, path: Path, *, overwrite: bool) -> None:
    """Raises UsageError or EnvironmentFault if the file of an option can't be written.

    Writes a few pages beside it, so that a full disk, a quota or a read-only file system shows
    early.
    """
    # Named like an unfinished result: it is swept up too.
    trial = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{option} {path} is not a file", remedy="give a file's name")
        if path.exists() and not overwrite:
            raise _exists(option, path)
        with trial.open("wb") as file:
            file.write(bytes(_ROOM))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        message = f"can't write {option} {clean(str(path))}: {error.strerror}"
        raise EnvironmentFault(message, remedy=f"give another {option}") from None
    finally:
        with contextlib.suppress(OSError):
            trial.unlink(missing_ok=True)


def _exists(option: str, path: Path | None) -> UsageError:
    return UsageError(f"{path} exists", remedy=f"give another {option}, or --overwrite")


def write_file(option: str, path: Path, content: str | bytes, rest: str = "") -> None:
    """Writes a file whole or not at all. Raises EnvironmentFault; `rest` says there where the
    result is instead.
    """
    from gpubalance.system.state import write_whole

    try:
        write_whole(path, content)
    except OSError as error:
        raise EnvironmentFault(
            f"can't write {path}: {error.strerror}", remedy=f"{rest}give another {option}"
        ) from None


def make_folder(option: str, folder: Path) -> None:
    """Makes the folder of an option. Raises EnvironmentFault if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise unwritable(option, folder, error) from None


def unwritable(option: str, folder: Path, error: OSError) -> EnvironmentFault:
    """The error for a folder in which nothing can be written."""
    why = "it is a file" if folder.is_file() else error.strerror or str(error)
    return EnvironmentFault(
        f"can't write to {option} {folder}: {why}", remedy=f"give another {option}"
    )
