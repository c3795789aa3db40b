"""A journal: one line on disk for each finished thing, so that `--resume` does not repeat it.

Two commands that would measure the same share a key. A job that is resumed simply runs again: what
it made under a key before is not made again, and its decisions follow from its measurements, which
are there.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ValidationError

from gpubalance._version import __version__
from gpubalance.devices.hosts import typed_for_hosts
from gpubalance.errors import RESUME, BadInput, GpubalanceError, InUse, UsageError
from gpubalance.jobs.events import Doing, Watch
from gpubalance.settings.code import code_key
from gpubalance.settings.requests import (
    IndependentRequest,
    MeasureRequest,
    ProbeRequest,
)
from gpubalance.system.state import Lock, delete_oldest, state_folder, sync_folder
from gpubalance.system.versions import software

_KEPT = 100

R = TypeVar("R", bound=BaseModel)


def content_key(*parts: BaseModel | str | int | float | None) -> str:
    """A short hash that is equal for equal devices, settings and options."""
    contents: list[Any] = []
    for part in parts:
        if isinstance(part, BaseModel):
            contents.append(part.model_dump(mode="json"))
        else:
            contents.append(part)
    text = json.dumps(contents, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Journal:
    """An append-only file of JSON lines, each on disk before the next thing is measured.

    With `resume` it continues what an interrupted command left under the same key; otherwise its
    first line replaces that. Threads may share a journal, processes may not: raises InUse with
    `what` the journal is and the PID of the process that holds it. A `with` block that ends well
    deletes the file, unless it `stays`, as its result could not be saved, or more may be asked. An
    error keeps it, and its remedy says so, unless what was kept no longer `helps`.

    `watch` is told where new things follow those that were left, as a job tells both alike, and
    when nothing more can be kept. `reused` counts the records that were left and are used, by their
    kind.
    """

    def __init__(self, key: str, what: str, *, resume: bool) -> None:
        self.path = _path(key)
        self.resume = resume
        self.stays = False
        self.helps = True
        self.watch: Watch = lambda _: None
        self.reused: Counter[type[BaseModel]] = Counter()
        self._lock = Lock(str(self.path), what)
        entries = list(_read(self.path))
        self._entries = entries if resume else []
        # It continues what an interrupted command left
        self.resumed = bool(self._entries)
        self.passes_over = bool(entries) and not resume
        self._threads = threading.Lock()
        self._file: IO[str] | None = None
        self.is_full = False
        self._is_worth_resuming = self.resumed
        # Loaded so far, by kind
        self._earlier: dict[type[BaseModel], dict[str, Any]] = {}
        self._has_new = False

    @staticmethod
    def left_at(key: str) -> float:
        """When an interrupted command last left anything under the key; 0 if none did.

        In seconds since 1970.
        """
        path = _path(key)
        return path.stat().st_mtime if any(_read(path)) else 0.0

    @staticmethod
    def last_left(key: str, kind: type[R]) -> R | None:
        """The last record of that kind that any command left under the key; None if none did."""
        records = _records(_read(_path(key)), kind)
        return next(reversed(records.values()), None)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: object
    ) -> None:
        if error is None and not self.stays:
            self.path.unlink(missing_ok=True)
        # Mended input and other options have another key.
        is_users = isinstance(error, BadInput | UsageError)
        helps = self._is_worth_resuming and self.helps and not is_users
        if helps and isinstance(error, GpubalanceError) and RESUME not in error.remedy:
            error.remedy = f"{error.remedy}\n{RESUME}".strip()
        self.close()

    def begin_anew(self) -> None:
        """Deletes what is not continued, if nothing is kept yet.

        Resuming this command must not find that.
        """
        if not self.resumed and self._file is None:
            self.path.unlink(missing_ok=True)

    def get_or_make(self, key: str, kind: type[R], make: Callable[[], R]) -> R:
        """The record that was left under the key, else a new one, which is kept."""
        record = self.load(key, kind)
        if record is None:
            record = make()
            self.keep(key, record)
        return record

    def load(self, key: str, kind: type[R]) -> R | None:
        """The last record of that kind that was left under the key, or None."""
        if kind not in self._earlier:
            self._earlier[kind] = self.load_all(kind)
        record: R | None = self._earlier[kind].get(key)
        if record is not None:
            self.reused[kind] += 1
        return record

    def keep(self, key: str, record: BaseModel) -> None:
        """Adds a record, and says so if it is the first that follows reused ones."""
        if self.reused and not self._has_new:
            self.watch(Doing("everything so far was measured before the interruption"))
        self._has_new = True
        self.add(key, record)

    def add(self, key: str, record: BaseModel, *, helps: bool = True) -> None:
        """Appends a finished record; returns when it is on disk.

        One that `helps` is worth resuming the command. If the disk is full it says so once and
        keeps nothing more; the measurement goes on.
        """
        kind = type(record).__name__
        entry = {"kind": kind, "key": key, "record": record.model_dump(mode="json")}
        with self._threads:
            if not self.is_full:
                self._append(json.dumps(entry))
                if helps and not self.is_full:
                    self._is_worth_resuming = True

    def _append(self, line: str) -> None:
        try:
            self._file = self._file or self._opened()
            self._file.write(line + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self.is_full = True
            why = f"can't write the journal {self.path}: {error.strerror}"
            self.watch(
                Doing(
                    f"{why}: the command continues, but --resume will not have what is "
                    "measured from now on"
                )
            )

    def _opened(self) -> IO[str]:
        mode = "a" if self.resumed else "w"
        file = self.path.open(mode, encoding="utf-8")
        if self.resumed:
            file.write("\n")  # ends a line that was cut off; empty lines are skipped
        sync_folder(self.path.parent)
        delete_oldest(self.path.parent, "*.jsonl", _KEPT)
        return file

    def load_all(self, kind: type[R]) -> dict[str, R]:
        """The last record of that kind that was left under each key.

        Skips lines that are no such record. Records of some time are moved, each to follow the one
        before, the last to end now: a boot resets the clock.
        """
        records: dict[str, Any] = dict(_records(self._entries, kind))
        if not hasattr(kind, "span_s"):
            return records
        end_s = time.monotonic()
        for key, record in reversed(records.items()):
            began_s, ended_s = record.span_s
            records[key] = record.later(end_s - ended_s)
            end_s -= ended_s - began_s
        return records

    def report_resumed(self) -> None:
        """Says whether the command continues what was measured before, or could."""
        text = ""
        if self.passes_over:
            text = "an unfinished measurement was found; --resume continues it"
        elif self.resumed:
            text = "continuing an unfinished measurement"
        elif self.resume:
            nothing = "nothing unfinished was found for these devices and settings"
            text = f"{nothing}: starting from the beginning"
        if text:
            self.watch(Doing(text, stays=True, resumes=self.resumed))

    def close(self) -> None:
        """Closes the file, which stays, and lets other processes have the journal."""
        with suppress(OSError):  # `add` said what could not be written
            if self._file is not None:
                self._file.close()
        self._lock.release()


def _path(key: str) -> Path:
    return state_folder("journals") / f"{key}.jsonl"


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """The entries that can be read.

    The last line may have been cut off, and others may be anything.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # such as none
        return
    for line in text.split("\n"):
        with suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                yield entry


def _records(entries: Iterable[dict[str, Any]], kind: type[R]) -> dict[str, R]:
    """The last record of that kind under each key."""
    records: dict[str, R] = {}
    for entry in entries:
        if entry.get("kind") == kind.__name__:
            with suppress(ValidationError):
                record = kind.model_validate_json(json.dumps(entry.get("record")))
                records[str(entry.get("key"))] = record
    return records


_MOST = 100  # equal commands at a time
# How long and how carefully it is measured, and what else does not change a measurement.
_BESIDE: dict[str, bool | set[str]] = {
    "tracing": True,
    "fresh": True,
    "force": True,
    "ahead": True,
    "least_samples": True,
    "rounds": True,
    "deadline_s": True,
    "time_limit_s": True,
    "measuring": {"windows", "deadline_s", "time_limit_s"},
}


def journal_of(request: MeasureRequest, *, resume: bool) -> Journal:
    """The journal of a command, the same for more rounds, more windows or another time limit.

    Raises InUse if another process is making the same probe; other commands have a journal each.
    """
    models = [request.settings.model]
    if isinstance(request, IndependentRequest):
        models += request.models
    key = content_key(
        type(request).__name__,
        request.model_dump_json(exclude=_BESIDE),
        request.driver,
        *(software_key(model, request.settings.data) for model in models),
        *typed_for_hosts(),
    )
    if isinstance(request, ProbeRequest):
        return Journal(key, "a probe of the same devices and settings", resume=resume)
    return free_journal(key, resume)


def software_key(model: str, data: str | None = None) -> str:
    """What a step's speed depends on besides devices and settings.

    The host, versions, the user's own files.
    """
    versions = [version or "" for version in software()]
    return " ".join([platform.node(), __version__, *versions, code_key(model, data)])


def free_journal(
    key: str, resume: bool, rank: Callable[[str], Any] | None = None
) -> Journal:
    """The first journal of this key that no process holds, of those that `rank` highest.

    On simulated devices equal commands may run at once. With `resume`, journals of interrupted
    commands come first unless ranked otherwise, the newest before the others.
    """
    keys = [key] + [f"{key}-{number}" for number in range(1, _MOST)]
    if rank is None and resume:
        rank = Journal.left_at
    if rank is not None:
        keys.sort(key=rank, reverse=True)
    for free in keys:
        try:
            return Journal(free, "the journal of this command", resume=resume)
        except InUse:
            continue
    raise InUse(
        "this command is already running a hundred times",
        remedy="wait until one of them has ended",
    )
