"""Where gpubalance keeps what outlives a command: the user's state directory, as the platform has it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import tempfile
from datetime import datetime, timezone
from pathlib import Path

import platformdirs

from gpubalance.errors import EnvironmentFault

_LOGS_KEPT = 50


def current_folder() -> Path:
    """Raises EnvironmentFault where it was deleted, as may happen to a terminal's."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise EnvironmentFault("the current folder was deleted", remedy="change into one that exists: cd ~") from None


def state_folder(name: str) -> Path:
    """A folder of that name under the state directory, made if need be; where that can't be, this process's own."""
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
    """The same for all processes of the user, so that locks and journals are found again; never another user's."""
    folder = Path(tempfile.gettempdir()) / f"gpubalance-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            (folder / name).mkdir(mode=0o700, exist_ok=True)
            return folder / name
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix=f"gpubalance-{name}-"))


def write_whole(path: Path, content: str | bytes) -> None:
    """Written beside it and renamed, so that nobody ever sees half of it. Raises OSError.

    What a killed gpubalance had begun to write of it is taken away.
    """
    path = path.resolve()  # the file behind a link, which stays a link
    sweep(path.parent, path.name)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:  # an interrupt too
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """A new name in it is on disk, as far as its file system can tell: without that a power cut takes it back."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sweep(folder: Path, name: str | None = None) -> None:
    """Takes away what processes that were killed had begun to write: of a file of that name, or of any."""
    whose = re.escape(name) if name else ".+"
    with contextlib.suppress(OSError):
        for left in folder.iterdir():
            match = re.fullmatch(rf"\.{whose}\.(\d+)\.tmp", left.name)
            if match and not _lives(int(match[1])):
                left.unlink()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def new_log(purpose: str) -> Path:
    """A path for a child's log; the oldest logs go."""
    folder = state_folder("logs")
    for old in sorted(folder.glob("*.log"))[:-_LOGS_KEPT]:
        if not _writes(old):
            old.unlink(missing_ok=True)
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%f")
    return folder / f"{stamp}-{os.getpid()}-{purpose}.log"


def _writes(log: Path) -> bool:
    """Whether the gpubalance that it is of lives: it may be in the middle of a night."""
    pid = log.name.split("-")[1:2]
    return bool(pid) and pid[0].isdigit() and _lives(int(pid[0]))
