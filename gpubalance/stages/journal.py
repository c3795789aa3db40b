"""A line on disk for each thing that is finished, so that nothing measured is lost and `--resume` can go on."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ValidationError

from gpubalance.choices import SAVED_MODEL
from gpubalance.errors import EnvironmentFault
from gpubalance.lock import Lock
from gpubalance.state import state_folder

NOTHING_LEFT = "nothing to go on with: anew"

_KEPT = 100

R = TypeVar("R", bound=BaseModel)


def content_key(*parts: BaseModel | str | int | float | None) -> str:
    """The same for the same devices, settings and options: a short hash of what they are, not of where they lie."""
    plain = [part.model_dump(mode="json") if isinstance(part, BaseModel) else part for part in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def software_key(model: str) -> str:
    """What is measured with, of which a device's speed depends: TensorFlow, and the file that a user's model is in."""
    return f"{version('tensorflow')} {_own_code(model)}"


def _own_code(model: str) -> str:
    """A hash of that file: changed, it is another model."""
    path = model.rpartition(":")[0] if ".py:" in model else model if model.endswith(SAVED_MODEL) else ""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
    except OSError:
        return ""  # the child says so


class Journal:
    """An append-only file of JSON lines, each on disk before the next thing is measured.

    With `resume` it begins with what an interrupted command left under the same key, else anew. Threads may share it,
    processes may not: raises EnvironmentFault with the PID of one that has it, `what` being what that is at, or where
    it can't be written. As a context it is `done` at the end, and kept where an error ends the block.
    """

    def __init__(self, key: str, what: str, *, resume: bool) -> None:
        self.path = _path(key)
        self.resume = resume
        self._held = Lock(str(self.path), what)
        self._entries = list(_read(self.path)) if resume else []
        _sweep(self.path.parent)
        self._lock = threading.Lock()
        self._added = False
        try:
            self._file: IO[str] = self.path.open("a" if resume else "w", encoding="utf-8")
            if resume:
                self._file.write("\n")  # ends a line that was cut off; empty ones are passed over
                self._file.flush()
        except OSError as error:
            self._held.release()
            raise self._unwritable(error) from None

    @staticmethod
    def is_left(key: str) -> bool:
        """Whether an interrupted command has left something under that key."""
        return any(_read(_path(key)))

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.done() if kind is None else self.close()

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
                self._added = True
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
        """Keeps it for `--resume`, if there is anything in it."""
        with suppress(OSError):  # what could not be written was told when it was added
            self._file.close()
            if not self._entries and not self._added:
                self.path.unlink(missing_ok=True)
        self._held.release()

    def _unwritable(self, error: OSError) -> EnvironmentFault:
        return EnvironmentFault(
            f"can't write the journal {self.path}: {error.strerror}", remedy="make room on that disk"
        )


def _sweep(folder: Path) -> None:
    """The oldest ones go: nobody goes on with them any more."""
    with suppress(OSError):  # another process may sweep too
        for old in sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
            old.unlink()


def _path(key: str) -> Path:
    return state_folder("journals") / f"{key}.jsonl"


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
