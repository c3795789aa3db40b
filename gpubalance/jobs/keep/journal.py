"""A journal: one line on disk for each finished thing, so that `--resume` does not measure it again."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ValidationError

from gpubalance.errors import RESUME, BadInput, GpubalanceError
from gpubalance.numbers.units import format_bytes
from gpubalance.system.lock import Lock
from gpubalance.system.state import delete_oldest, state_folder, sync_folder

_KEPT = 100
_MOST_BYTES = 256 << 20  # hours of steps of a millisecond, and no more than can be read again

R = TypeVar("R", bound=BaseModel)


def content_key(*parts: BaseModel | str | int | float | None) -> str:
    """A short hash that is equal for equal devices, settings and options: it is of their contents."""
    plain = [part.model_dump(mode="json") if isinstance(part, BaseModel) else part for part in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


class Journal:
    """An append-only file of JSON lines, each on disk before the next thing is measured.

    With `resume` it continues what an interrupted command left under the same key; otherwise its first line replaces
    that. Threads may share a journal, processes may not: raises InUse with `what` the journal is and the PID of the
    process that holds it. A `with` block that ends well deletes the file; an error keeps it, and its remedy says so.
    """

    def __init__(self, key: str, what: str, *, resume: bool, most_bytes: int = _MOST_BYTES) -> None:
        self.path = _path(key)
        self.resume = resume
        self.tell: Callable[[str], object] = str  # told when nothing more can be kept
        self._held = Lock(str(self.path), what)
        found = list(_read(self.path))
        self._entries = found if resume else []
        self.passes_over = bool(found) and not resume
        self._threads = threading.Lock()
        self._file: IO[str] | None = None
        self._most_bytes = most_bytes
        self._is_full = False
        self._can_resume = bool(self._entries)
        self._keep = False

    @staticmethod
    def is_left(key: str) -> bool:
        """Whether an interrupted command has left anything under the key."""
        return any(_read(_path(key)))

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None and not self._keep:
            self.path.unlink(missing_ok=True)
        bad = isinstance(error, BadInput)  # mended input has another key
        if isinstance(error, GpubalanceError) and not bad and self._can_resume and RESUME not in error.remedy:
            error.remedy = f"{error.remedy}\n{RESUME}".strip()
        self.close()

    @property
    def resumed(self) -> bool:
        """Whether it continues what an interrupted command left."""
        return bool(self._entries)

    def add(self, device: str, record: BaseModel) -> None:
        """Appends a finished record of a device (its UUID); returns when it is on disk.

        If the disk is full, or the journal would become too long to be read again, it says so once and keeps nothing
        more; the measurement goes on.
        """
        kind = type(record).__name__
        line = json.dumps({"kind": kind, "device": device, "record": record.model_dump(mode="json")})
        with self._threads:
            if not self._is_full:
                self._add(line)

    def _add(self, line: str) -> None:
        try:
            self._append(line)
            self._can_resume = True
        except OSError as error:
            self._is_full = True
            why = f"can't write the journal {self.path}: {error.strerror}"
            self.tell(f"{why}: continuing, but nothing more is kept for --resume")

    def _append(self, line: str) -> None:
        self._file = self._file or self._opened()
        if os.fstat(self._file.fileno()).st_size + len(line) >= self._most_bytes:
            raise OSError(errno.EFBIG, f"it holds {format_bytes(self._most_bytes)}")
        self._file.write(line + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _opened(self) -> IO[str]:
        file = self.path.open("a" if self._entries else "w", encoding="utf-8")
        if self._entries:
            file.write("\n")  # ends a line that was cut off; empty lines are skipped
        sync_folder(self.path.parent)
        delete_oldest(self.path.parent, "*.jsonl", _KEPT)
        return file

    def of(self, device: str, kind: type[R]) -> list[R]:
        """The records of that kind that were left of a device, in order. Skips lines that are no such record."""
        return [record for its, record in self.all(kind) if its == device]

    def all(self, kind: type[R]) -> list[tuple[str, R]]:
        """The records of that kind that were left, each with its device."""
        found = []
        for entry in self._entries:
            if entry.get("kind") == kind.__name__:
                with suppress(ValidationError):
                    record = kind.model_validate_json(json.dumps(entry.get("record")))
                    found.append((str(entry.get("device")), record))
        return found

    def cannot_help(self) -> None:
        """Makes an error not offer --resume: what was kept would not help."""
        self._can_resume = False

    def keep(self) -> None:
        """Keeps the file even if the command ends well, as its result could not be saved."""
        self._keep = True

    def close(self) -> None:
        """Closes the file, which stays, and lets other processes have the journal."""
        with suppress(OSError):  # `add` said what could not be written
            if self._file is not None:
                self._file.close()
        self._held.release()


def _path(key: str) -> Path:
    return state_folder("journals") / f"{key}.jsonl"


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """The entries that can be read: the last line may have been cut off, and others may be anything."""
    with suppress(OSError):
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:  # no journal of ours
            return
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            with suppress(ValueError, RecursionError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    yield entry
