"""Where a result goes: to stdout as text or JSON, and into a file that can be written."""

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
from gpubalance.text import clean, is_utf8

if TYPE_CHECKING:
    from gpubalance.cli.options import Reporting
    from gpubalance.jobs.journal import Journal
    from gpubalance.render.table import Paragraph
    from gpubalance.results.common import Warning_


_ROOM = 1 << 18  # bytes; a result takes some ten thousand


def check_file(option: str, path: Path, *, overwrite: bool) -> None:
    """Raises UsageError or EnvironmentFault if the file of an option can't be written.

    Writes a few pages beside it, so that a full disk, a quota or a read-only file system shows
    early.
    """
    from gpubalance.system.state import temporary_beside

    if str(path) == "-":
        raise UsageError(
            f"{option} - would write a file called -, not to stdout",
            remedy="give a file's name",
        )
    try:
        if path.exists() and not path.is_file():
            raise UsageError(
                f"{option} {path} is not a file", remedy="give a file's name"
            )
        if path.exists() and not overwrite:
            raise file_exists(option, path)
        with temporary_beside(path, bytes(_ROOM)):
            pass
    except OSError as error:
        message = f"can't write {option} {clean(str(path))}: {error.strerror}"
        raise EnvironmentFault(message, remedy=f"give another {option}") from None


def file_exists(option: str, path: Path) -> UsageError:
    """The error for a file that would be replaced."""
    return UsageError(f"{path} exists", remedy=f"give another {option}, or --overwrite")


def write_file(
    option: str, path: Path, content: str | bytes, elsewhere: str = ""
) -> None:
    """Writes a file whole or not at all. Raises EnvironmentFault.

    `elsewhere` begins its remedy: where the result is instead.
    """
    from gpubalance.system.state import write_whole

    try:
        write_whole(path, content)
    except OSError as error:
        raise EnvironmentFault(
            f"can't write {path}: {error.strerror}",
            remedy=f"{elsewhere}give another {option}",
        ) from None


def make_folder(option: str, folder: Path) -> None:
    """Makes the folder of an option. Raises EnvironmentFault if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise unwritable(option, folder, error) from None


def refuse_not_utf8(option: str, folder: Path) -> None:
    """Raises UsageError for a folder whose name JSON can't hold."""
    if not is_utf8(str(folder)):
        raise UsageError(
            f"{option} {clean(repr(str(folder)))} is not UTF-8",
            remedy="give a folder whose name is",
        )


def unwritable(option: str, folder: Path, error: OSError) -> EnvironmentFault:
    """The error for a folder in which nothing can be written."""
    why = "it is a file" if folder.is_file() else error.strerror or str(error)
    return EnvironmentFault(
        f"can't write to {option} {folder}: {why}", remedy=f"give another {option}"
    )


class Output:
    """Where the options of a command want its result: on stdout, and whole or not at all in a file.

    stdout gets JSON or the result's `text`; an empty one is not printed. The `noted` warnings come
    before the result's own. An empty line separates the result from progress on stderr. A resumed
    command may replace its own unfinished result; every command may replace an estimate. Raises
    UsageError if the file exists, EnvironmentFault if it can't be written.
    """

    def __init__(
        self,
        reporting: Reporting,
        text: Callable[[Any], str],
        noted: Sequence[Warning_] = (),
        *,
        shows_progress: bool = True,
        resumed: bool = False,
    ) -> None:
        from gpubalance.results.records import is_estimate

        self._text = text
        self._noted = noted
        self._as_json = reporting.as_json
        self._quiet = reporting.quiet or not shows_progress
        self._path = reporting.output
        self._replaces = reporting.overwrite
        self._continues = False
        if self._path is not None:
            self._replaces = self._replaces or is_estimate(self._path)
            self._continues = (
                not self._replaces and resumed and _is_unfinished(self._path)
            )
            self._replaces = self._replaces or self._continues
            check_file("-o", self._path, overwrite=self._replaces)

    def check_continues(self, journal: Journal) -> None:
        """Raises UsageError if the unfinished result in the file is of another measurement."""
        if self._path is not None and self._continues and not journal.resumed:
            raise file_exists("-o", self._path)

    @contextlib.contextmanager
    def left_by_an_error(self) -> Iterator[None]:
        """Outputs the partial result of an error that the block raises, and raises the error on."""
        try:
            yield
        except GpubalanceError as error:
            if error.partial is not None:
                self.give(error.partial)
            raise

    def give(self, result: Any, journal: Journal | None = None) -> Any:
        """Writes the result, then prints it; returns it with the noted warnings.

        If nobody reads it, the measurement's `journal` is kept. If it can't be written, prints it
        all the same and raises EnvironmentFault.
        """
        if self._noted:
            result = result.model_copy(
                update={"warnings": (*self._noted, *result.warnings)}
            )
        document = result.model_dump_json(indent=2)
        printed = document if self._as_json else self._text(result)
        self._print_beside("")
        try:
            if self._path is not None:
                self._write(self._path, document)
        finally:
            was_read = say(printed, sys.stdout)
        if not was_read and self._path is None and journal is not None:
            journal.stays = True
            self._print_beside(
                "stdout was closed before the result was printed: rerun with "
                "--resume to print it"
            )
        return result

    def _write(self, path: Path, document: str) -> None:
        if path.exists() and not self._replaces:
            raise EnvironmentFault(
                f"another program created {path} meanwhile",
                remedy="the result is on stdout",
            )
        write_file("-o", path, document + "\n", "the result is on stdout; ")

    def _print_beside(self, text: str) -> None:
        if not self._quiet:
            say(text, sys.stderr)


def width() -> int:
    """The columns for a summary on stdout: a narrow terminal's own, otherwise 80."""
    from gpubalance.render.table import WIDTH

    if not sys.stdout.isatty():
        return WIDTH
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 0)).columns)


def summed_up(
    result: Any,
    paragraphs: Iterable[Paragraph],
    next_command: str = "",
    script: Sequence[str] = (),
) -> str:
    """The text about a result, its warnings and those of its proof, and what can follow.

    That is a command, and the lines of a training script.
    """
    from gpubalance.cli.next_command import typed
    from gpubalance.render.table import summary
    from gpubalance.results.subject import warnings_of

    return summary(
        paragraphs, warnings_of(result), next_command, script, width(), typed
    )


def say(text: str, stream: TextIO) -> bool:
    """Prints a text. Returns False if its reader has gone, which must not fail a measurement."""
    try:
        print(
            text,
            end="\n" if text or stream is sys.stderr else "",
            file=stream,
            flush=True,
        )
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
        return not read_reported(path).complete
    except GpubalanceError:
        return False
