"""Where a result goes: stdout as text or JSON, and a file. Checked before anything is measured."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpubalance.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from gpubalance.config import Record


@dataclass(frozen=True)
class Output:
    """`json`: stdout is the result as JSON. `path`: it is written there too, whole or not at all."""

    json: bool
    path: Path | None

    def give(self, result: Record, text: str) -> None:
        """Prints the result, then writes it. Raises EnvironmentFault when it can't be written; it is printed then."""
        document = result.model_dump_json(indent=2)
        print(document if self.json else text, flush=True)
        if self.path is not None:
            _write_whole(self.path, document + "\n")


def check_output(path: Path | None, *, overwrite: bool, json: bool) -> Output:
    """Raises UsageError for a file that exists, EnvironmentFault where none can be written."""
    if path is not None:
        if path.is_dir():
            raise UsageError(f"-o {path} is a folder", remedy="give a file's name")
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists", remedy="give another -o, or --overwrite")
        folder = path.parent
        if not folder.is_dir():
            raise EnvironmentFault(f"the folder of -o {path} does not exist", remedy=f"mkdir -p {folder}")
        if not os.access(folder, os.W_OK):
            raise EnvironmentFault(f"the folder of -o {path} can't be written to", remedy="give another -o")
    return Output(json=json, path=path)


def _write_whole(path: Path, text: str) -> None:
    """Written beside it and renamed, so that nobody ever sees half of it."""
    temporary = ""
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            temporary = file.name
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise EnvironmentFault(
            f"can't write {path}: {error.strerror}", remedy="the result is above, on stdout; give another -o"
        ) from None
