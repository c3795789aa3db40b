"""A line on disk for each thing that is finished, so that nothing measured is lost and `--resume` can go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel

from gpubalance.config import Device, Settings
from gpubalance.state import state_folder


def content_key(devices: Sequence[Device], settings: Settings, *others: object) -> str:
    """The same for the same devices, settings and options: a short hash of what they are, not of where they lie."""
    text = json.dumps(
        [[d.model_dump(mode="json") for d in devices], settings.model_dump(mode="json"), *map(str, others)],
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Journal:
    """An append-only file of JSON lines, each fsynced before the next thing is measured."""

    def __init__(self, key: str, *, resume: bool) -> None:
        self.path = state_folder("journals") / f"{key}.jsonl"
        self.entries: list[tuple[str, str, Any]] = list(_read(self.path)) if resume else []
        self._file: IO[str] = self.path.open("a" if resume else "w", encoding="utf-8")
        if resume and self._file.tell():
            self._file.write("\n")  # ends a line that was cut off; empty ones are passed over

    def add(self, kind: str, uuid: str, record: BaseModel) -> None:
        """Appends; returns when it is on disk."""
        line = json.dumps({"kind": kind, "device": uuid, "record": record.model_dump(mode="json")})
        self._file.write(line + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def of(self, kind: str, uuid: str) -> list[Any]:
        """The records of that kind that an interrupted measurement left of this device."""
        return [record for k, device, record in self.entries if (k, device) == (kind, uuid)]

    def done(self) -> None:
        """All of it is in a result now."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Keeps it for `--resume`."""
        self._file.close()


def _read(path: Path) -> Iterator[tuple[str, str, Any]]:
    """Whole lines only: the last may have been cut off, and whatever is no entry is passed over."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = json.loads(line)
            yield str(entry["kind"]), str(entry["device"]), entry["record"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
