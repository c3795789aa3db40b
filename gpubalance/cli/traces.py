"""The folders of `--tensorboard` and `--trace`, in each of which a command has one of its own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

from gpubalance.cli.files import make_folder
from gpubalance.cli.options import Reporting
from gpubalance.devices.hosts import are_reached
from gpubalance.settings.choices import TRACES
from gpubalance.settings.measuring import Tracing


def name_now(command: str, reporting: Reporting) -> str:
    """`run-20261121-142510`, local time, with a number if a folder already has that name."""
    stem = time.strftime(f"{command}-%Y%m%d-%H%M%S")
    folders = []
    for folder in (reporting.tensorboard, reporting.trace):
        if folder is not None:
            folders += [folder, folder / TRACES]
    name = stem
    for number in itertools.count(2):
        if not _has(folders, name):
            break
        name = f"{stem}-{number}"
    return name


def _has(folders: Sequence[Path], name: str) -> bool:
    return any((folder / name).exists() for folder in folders)


def tracing_to(folder: Path | None, name: str) -> Tracing | None:
    """The trace of that name, in a folder on the workers' hosts.

    Raises EnvironmentFault if nothing can be written there.
    """
    if folder is None:
        return None
    if not are_reached():
        make_folder("--trace", folder)
    return Tracing(folder=str(folder.absolute()), name=name)
