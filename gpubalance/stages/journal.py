"""A line on disk for each thing that is finished, so that nothing measured is lost and `--resume` can go on."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ValidationError

from gpubalance.errors import EnvironmentFault
from gpubalance.lock import Lock
from gpubalance.state import state_folder

R = TypeVar("R", bound=BaseModel)


def content_key(*parts: BaseModel | str | int | float | None) -> str:
    """The same for the same devices, settings and options: a short hash of what they are, not of where they lie."""
    plain = [part.model_dump(mode="json") if isinstance(part, BaseModel) else part for part in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


class Journal:
    """An append-only file of JSON lines, each on disk before the next thing is measured.

    With `resume` it begins with what an interrupted command left under the same key, else anew. Threads may share it,
    processes may not: raises EnvironmentFault with the PID of one that has it, or where it can't be written.
    """

    def __init__(self, key: str, *, resume: bool) -> None:
        self.path = state_folder("journals") / f"{key}.jsonl"
        self._held = Lock(str(self.path), "a probe of the same devices and settings")
        self._entries = list(_read(self.path)) if resume else []
        self._lock = threading.Lock()
        try:
            self._file: IO[str] = self.path.open("a" if resume else "w", encoding="utf-8")
            if resume:
                self._file.write("\n")  # ends a line that was cut off; empty ones are passed over
                self._file.flush()
        except OSError as error:
            self._held.release()
            raise self._unwritable(error) from None

    @property
    def resumed(self) -> bool:
        """Whether there was something to go on with."""
        return bool(self._entries)

    def add(self, device: str, record: BaseModel) -> None:
        """Appends what is finished of a device (its UUID); returns when it is on disk."""
        kind = type(record).__name__
        line = json.dumps({"kind": kind, "device": device, "record": record.model_dump(mode="json")})
        try:
            with self._lock:
                self._file.write(line + "\n")
                self._file.flush()
                os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritable(error) from None

    def of(self, device: str, kind: type[R]) -> list[R]:
        """The records of that kind that were left of a device, in order; those that are no such records left out."""
        return list(self._valid(device, kind))

    def _valid(self, device: str, kind: type[R]) -> Iterator[R]:
        for entry in self._entries:
            if entry.get("kind") == kind.__name__ and entry.get("device") == device:
                try:
                    yield kind.model_validate_json(json.dumps(entry.get("record")))
                except ValidationError:
                    continue

    def done(self) -> None:
        """All of it is in a result now."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Keeps it for `--resume`."""
        with suppress(OSError):  # what could not be written was told when it was added
            self._file.close()
        self._held.release()

    def _unwritable(self, error: OSError) -> EnvironmentFault:
        return EnvironmentFault(
            f"can't write the journal {self.path}: {error.strerror}", remedy="make room on that disk"
        )


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """Whole lines only: the last may have been cut off, and whatever is no entry is passed over."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            yield entry
