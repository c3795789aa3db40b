"""Where gpubalance keeps what outlives a command: in the user's state directory of the platform."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

import platformdirs

from gpubalance.errors import EnvironmentFault, InUse
from gpubalance.text import clean, is_utf8


class Lock:
    """Held until `release` or the end of the process; workers do not inherit it.

    `name` may be any text. If another process holds it, raises InUse, which names `what` is in use
    and the PID. On a file system that has no locks, or no room for one, nothing is locked.
    """

    def __init__(self, name: str, what: str) -> None:
        digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
        self._path = state_folder("locks") / f"{digest[:24]}.lock"
        self._file = _locked(self._path, what)
        if self._file is not None:
            # On a full disk the lock holds without a PID
            with contextlib.suppress(OSError):
                self._file.truncate(0)
                self._file.write(str(os.getpid()).encode())

    def release(self) -> None:
        """Lets others have the lock. May be called more than once."""
        if self._file is not None:
            # While it is locked: whoever opened this file sees that it is gone
            self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None


def _locked(path: Path, what: str) -> IO[bytes] | None:
    while True:
        try:
            # Unbuffered, so that closing it writes nothing
            file = path.open("a+b", buffering=0)
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                file.close()
                return None
            file.seek(0)
            pid = file.read(20).decode("ascii", "replace").strip()
            file.close()
            raise _in_use(what, pid) from None
        if _is_still_there(file, path):
            return file
        # Its holder removed it after we had opened it, so it locks nothing
        file.close()


def _in_use(what: str, pid: str) -> InUse:
    message = f"{what} is in use by another gpubalance"
    remedy = "wait until it has ended"
    if pid.isdigit():
        message += f", process {pid}"
        remedy += f", or end it: kill {pid}"
    return InUse(message, remedy=remedy)


def _is_still_there(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


_LOGS_KEPT = 50
_TEMPORARY = r"\.(\d{1,9})(?:\.[0-9a-f]{8})?\.tmp"  # a PID, and what nobody can guess
_LEFT_BEHIND_AFTER_S = 3600.0
_LOG = re.compile(r"\d+T[\d.]+-(\d{1,9})-")


def existing_folder() -> Path:
    """The current folder. Raises EnvironmentFault if it was deleted meanwhile."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise EnvironmentFault(
            "the current folder was deleted", remedy="change into one that exists: cd ~"
        ) from None


def absolute(path: Path) -> Path:
    """The path from the root. Raises EnvironmentFault if that leads through a deleted folder."""
    return path if path.is_absolute() else existing_folder() / path


def current_folder() -> Path:
    """The current folder.

    Raises EnvironmentFault if it was deleted meanwhile, or if JSON can't hold its name.
    """
    folder = existing_folder()
    if not is_utf8(str(folder)):
        raise EnvironmentFault(
            f"the current folder's name is not UTF-8: {clean(repr(str(folder)))}",
            remedy="run it in another folder",
        )
    return folder


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

    Deletes the temporary files that killed processes left of the same file: see `sweep`. Raises
    OSError.
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
    guessed, and what has it already is not opened. Deletes those that killed processes left: see
    `sweep`.
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
    """Deletes the temporary files of killed processes, for the file `name` or for any file.

    Only files that are over an hour old: in a shared folder, a process of another host may be about
    to rename a younger one.
    """
    before_s = time.time() - _LEFT_BEHIND_AFTER_S
    whose = re.escape(name) if name else ".+"
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            match = re.fullmatch(rf"\.{whose}{_TEMPORARY}", file.name)
            if not match or _lives(match[1]):
                continue
            if file.stat().st_mtime < before_s:
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
