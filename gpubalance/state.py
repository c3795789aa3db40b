"""Where gpubalance keeps what outlives a command: the user's state directory, as the platform has it."""

from __future__ import annotations

import os
import tempfile
from datetime import datetime, timezone
from pathlib import Path

import platformdirs

_LOGS_KEPT = 50


def state_folder(name: str) -> Path:
    """A folder of that name under the state directory, made if need be; a temporary one where that can't be."""
    folder = platformdirs.user_state_path("gpubalance") / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix=f"gpubalance-{name}-"))


def write_whole(path: Path, content: str | bytes) -> None:
    """Written beside it and renamed, so that nobody ever sees half of it. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def new_log(purpose: str) -> Path:
    """A path for a child's log; the oldest logs go."""
    folder = state_folder("logs")
    for old in sorted(folder.glob("*.log"))[:-_LOGS_KEPT]:
        old.unlink(missing_ok=True)
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%f")
    return folder / f"{stamp}-{os.getpid()}-{purpose}.log"
