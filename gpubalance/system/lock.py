"""Locks between processes of one user. The kernel holds them, so a process that dies holds none."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from pathlib import Path
from typing import IO

from gpubalance.errors import InUse
from gpubalance.system.state import state_folder


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
