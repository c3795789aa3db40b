"""Files and folders that options name: whether they can be written shows before any measurement."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpubalance.errors import EnvironmentFault, UsageError
from gpubalance.text import clean

_ROOM = 1 << 18  # bytes; a result takes some ten thousand


def check_file(option: str, path: Path, *, overwrite: bool) -> None:
    """Raises UsageError or EnvironmentFault if the file of an option can't be written.

    Writes a few pages beside it, so that a full disk, a quota or a read-only file system shows
    early.
    """
    from gpubalance.system.state import temporary_beside

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


def unwritable(option: str, folder: Path, error: OSError) -> EnvironmentFault:
    """The error for a folder in which nothing can be written."""
    why = "it is a file" if folder.is_file() else error.strerror or str(error)
    return EnvironmentFault(
        f"can't write to {option} {folder}: {why}", remedy=f"give another {option}"
    )
