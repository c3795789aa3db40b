"""Where gpubalance keeps what outlives a command: in the user's state directory of the platform."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import platformdirs

from gpubalance.errors import EnvironmentFault

_LOGS_KEPT = 50
_TEMPORARY = r"\.(\d{1,9})(?:\.[0-9a-f]{8})?\.tmp"  # a PID, and what nobody can guess
_LOG = re.compile(r"\d+T[\d.]+-(\d{1,9})-")


def current_folder() -> Path:
    """The current folder. Raises EnvironmentFault if it was deleted meanwhile."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise EnvironmentFault(
            "the current folder was deleted", remedy="change into one that exists: cd ~"
        ) from None


def state_folder(name: str) -> Path:
    """The folder `name` in the state directory, or in /tmp if that can't be written to."""
    folder = platformdirs.user_state_path("gpubalance") / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return _temporary(name)


@functools.cache
def _temporary(name: str) -> Path:
    """One folder for all of the user's processes, which share locks and journals there.

    It is never another user's.
    """
    folder = Path(tempfile.gettempdir()) / f"gpubalance-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if is_own and not status.st_mode & 0o077:
            (folder / name).mkdir(mode=0o700, exist_ok=True)
            return folder / name
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix=f"gpubalance-{name}-"))


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes to a temporary file beside `path` and renames it: nobody ever sees half of it.

    Deletes the temporary files that killed processes left of the same file. Raises OSError.
    """
    path = path.resolve()  # follows a link, which stays a link
    if isinstance(content, str):
        content = content.encode("utf-8")
    with temporary_beside(path, content) as temporary:
        temporary.replace(path)
        sync_folder(path.parent)


@contextlib.contextmanager
def temporary_beside(path: Path, content: bytes) -> Iterator[Path]:
    """A new file on disk beside `path`, which is gone at the end of the block, or renamed.

    In a folder that others may write to, nobody can lay a link in its place: its name can't be
    guessed, and what has it already is not opened. Deletes those that killed processes left.
    """
    sweep(path.parent, path.name)
    token = os.urandom(4).hex()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{token}.tmp")
    file = temporary.open("xb")
    try:
        with file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:  # an interrupt too
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Puts a new name in the folder on disk, so that a power cut does not take it back."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sweep(folder: Path, name: str | None = None) -> None:
    """Deletes the temporary files of killed processes, for the file `name` or for any file."""
    whose = re.escape(name) if name else ".+"
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            match = re.fullmatch(rf"\.{whose}{_TEMPORARY}", file.name)
            if match and not _lives(match[1]):
                file.unlink()


def delete_oldest(folder: Path, pattern: str, maximum: int) -> None:
    """Deletes all but so many of the folder's files or folders, the oldest first.

    Logs of living processes stay.
    """
    with contextlib.suppress(OSError):  # another process may do so too
        by_age = sorted(
            folder.glob(pattern), key=lambda path: (path.stat().st_mtime, path.name)
        )
        for old in by_age[:-maximum]:
            log = _LOG.match(old.name)
            if log and _lives(log[1]):  # a gpubalance may run for a whole night
                continue
            if old.is_dir():
                shutil.rmtree(old)
            else:
                old.unlink()


def _lives(pid: str) -> bool:
    if int(pid) == os.getpid():
        return True
    import psutil  # here, as most commands find no such file

    return bool(psutil.pid_exists(int(pid)))


def new_log(purpose: str) -> Path:
    """A path for a worker's log. Deletes the oldest logs of processes that have ended."""
    folder = state_folder("logs")
    delete_oldest(folder, "*.log", _LOGS_KEPT)
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%f")
    return folder / f"{stamp}-{os.getpid()}-{purpose}.log"
