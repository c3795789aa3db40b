"""`made(folder)`: a folder that is there for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def made(folder: Path) -> Iterator[Path]:
    """The folder, which is deleted afterwards if it was not there and nobody else uses it."""
    was_there = folder.is_dir()
    folder.mkdir(exist_ok=True, mode=0o700)
    try:
        yield folder
    finally:
        if not was_there:
            with contextlib.suppress(OSError):
                folder.rmdir()
