"""Results that were made here, kept under the user's state directory for later commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from gpubalance.errors import BadInput
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_record
from gpubalance.results.run import Run
from gpubalance.system.state import state_folder, sweep, write_whole

_KEPT = 100

Result = TypeVar("Result", Probe, Plan, Run)


def save(name: str, result: Probe | Run) -> Path | None:
    """Keeps a result in the folder of that name, and deletes the oldest ones. Returns None if it can't be written."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%f")
    return put(state_folder(name) / f"{stamp}-{os.getpid()}.json", result)


def put(path: Path, result: Probe | Run | Plan) -> Path | None:
    """Writes a result there instead of the oldest ones of its folder. Returns None if it can't be written."""
    try:
        sweep(path.parent)
        for old in sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)[:-_KEPT]:
            old.unlink(missing_ok=True)
        write_whole(path, result.model_dump_json(indent=1))
    except OSError:  # another process may sweep too
        return None
    return path


def saved(name: str, kind: type[Result]) -> Iterator[Result]:
    """The results in that folder that can be read, the latest first."""
    for path in sorted(state_folder(name).glob("*.json"), reverse=True):
        with suppress(BadInput):  # damaged
            yield read_record(path, kind)
