"""A line on disk for each thing that is finished, so that nothing measured is lost and `--resume` can go on."""

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

from gpubalance.errors import RESUME, GpubalanceError
from gpubalance.numbers.units import format_bytes
from gpubalance.system.lock import Lock
from gpubalance.system.state import state_folder, sync_folder

_KEPT = 100
_MOST_BYTES = 256 << 20  # hours of steps of a millisecond, and no more than can be read again
_LINE_ENDS = 2  # its own, and that of one that was cut off

R = TypeVar("R", bound=BaseModel)


def content_key(*parts: BaseModel | str | int | float | None) -> str:
    """The same for the same devices, settings and options: a short hash of what they are, not of where they lie."""
    plain = [part.model_dump(mode="json") if isinstance(part, BaseModel) else part for part in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


class Journal:
    """An append-only file of JSON lines, each on disk before the next thing is measured.

    With `resume` it begins with what an interrupted command left under the same key; else the first line that is added
    takes the place of that. Threads may share it, processes may not: raises InUse with the PID of one that has it,
    `what` being what that is at. As a context it is `done` at the end; where an error ends the block it is kept, and
    the error says so.
    """

    def __init__(self, key: str, what: str, *, resume: bool, most_bytes: int = _MOST_BYTES) -> None:
        self.path = _path(key)
        self.resume = resume
        self._held = Lock(str(self.path), what)
        found = list(_read(self.path))
        self._entries = found if resume else []
        self.passes_over = bool(found) and not resume
        self._lock = threading.Lock()
        self._file: IO[str] | None = None
        self.error: OSError | None = None
        self._most_bytes = most_bytes
        self._keep = False
        self._holds = bool(self._entries)  # whether there is something to go on with
        self.tell: Callable[[str], object] = _nobody

    @staticmethod
    def is_left(key: str) -> bool:
        """Whether an interrupted command has left something under that key."""
        return any(_read(_path(key)))

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.done() if error is None else self.close(error)

    @property
    def resumed(self) -> bool:
        """Whether there was something to go on with."""
        return bool(self._entries)

    def add(self, device: str, record: BaseModel) -> None:
        """Appends what is finished of a device (its UUID); returns when it is on disk.

        A disk that is full, or a journal that is too long to be read again, ends the keeping, and no measurement: it is
        told, once.
        """
        kind = type(record).__name__
        line = json.dumps({"kind": kind, "device": device, "record": record.model_dump(mode="json")})
        with self._lock:
            if self.error is not None:
                return
            try:
                self._append(line)
                self._holds = True
            except OSError as error:
                self.error = error
        if self.error is not None:
            why = f"can't write the journal {self.path}: {self.error.strerror}"
            self.tell(f"{why}: going on, and nothing more is kept for --resume")

    def _append(self, line: str) -> None:
        self._file = self._file or self._opened()
        if os.fstat(self._file.fileno()).st_size + len(line) + _LINE_ENDS > self._most_bytes:
            raise OSError(errno.EFBIG, f"it holds {format_bytes(self._most_bytes)}")
        self._file.write(line + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _opened(self) -> IO[str]:
        file = self.path.open("a" if self._entries else "w", encoding="utf-8")
        if self._entries:
            file.write("\n")  # ends a line that was cut off; empty ones are passed over
        sync_folder(self.path.parent)
        _sweep(self.path.parent)
        return file

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

    def keep(self) -> None:
        """It stays for `--resume`, whatever comes: there was no room for the result of it."""
        self._keep = True

    def done(self) -> None:
        """All of it is in a result now."""
        if not self._keep:
            self.path.unlink(missing_ok=True)
        self.close()

    def close(self, error: BaseException | None = None) -> None:
        """Keeps it for `--resume`, which the error that ended the command then tells."""
        if isinstance(error, GpubalanceError) and self._holds and RESUME not in error.remedy:
            error.remedy = f"{error.remedy}\n{RESUME}".strip()
        with suppress(OSError):  # what could not be written was told when it was added
            if self._file is not None:
                self._file.close()
        self._held.release()


def _nobody(text: str) -> None:
    del text


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
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:  # no journal of ours
            return
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with suppress(ValueError, RecursionError):
                    entry = json.loads(line)
                    if isinstance(entry, dict):
                        yield entry
    except OSError:
        return
