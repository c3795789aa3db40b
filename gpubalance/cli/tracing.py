"""`--trace DIR`: where the profiler's trace goes, and what a command's part of such a folder is called."""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpubalance.cli.output import unwritable
from gpubalance.settings.choices import TRACES

if TYPE_CHECKING:
    from gpubalance.settings.requests import Tracing


def name_now(command: str, *folders: Path | None) -> str:
    """`run-20261121-142510`, local time, with a number where one of the folders has such a command already."""
    stem = time.strftime(f"{command}-%Y%m%d-%H%M%S")
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    given = [folder for folder in folders if folder is not None]
    return next(name for name in names if not any((f / name).exists() or (f / TRACES / name).exists() for f in given))


def tracing_to(folder: Path | None, name: str) -> Tracing | None:
    """The trace of that name in a folder. Raises EnvironmentFault where nothing can be written there."""
    if folder is None:
        return None
    from gpubalance.settings.requests import Tracing

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise unwritable("--trace", folder, error) from None
    return Tracing(folder=str(folder.absolute()), name=name)
