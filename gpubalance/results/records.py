"""Reads results from files."""

from __future__ import annotations

import codecs
import os
import shlex
from collections.abc import Container
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from pydantic import ValidationError
from pydantic_core import from_json

from gpubalance.errors import BadInput
from gpubalance.results import estimate
from gpubalance.results.common import SCHEMA_VERSION
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Noise, Plan
from gpubalance.results.probe import Probe
from gpubalance.results.queue import Queue
from gpubalance.results.run import Run
from gpubalance.settings.record import Record, first_fault
from gpubalance.system.files import content_of
from gpubalance.text import clean, clean_lines

Result = TypeVar("Result", Probe, Plan, Run, Independent, Layers, Queue, Noise)
AnyResult = Probe | Plan | Run | Independent | Layers
Reported = AnyResult | Queue


class _Kind(NamedTuple):
    """A kind of result, what it is called, and the command that writes the best of it."""

    record: type[Reported | Noise]
    called: str
    writer: str

    def writes(self, file: str = "FILE") -> str:
        """`gpubalance run -o FILE writes one`."""
        return f"{self.writer.format(file)} writes one"


_KINDS = {
    "run": _Kind(Run, "a run", "gpubalance run -o {}"),
    "probe": _Kind(Probe, "a probe", "gpubalance probe -o {}"),
    "plan": _Kind(Plan, "a plan", "gpubalance balance -o {}"),
    "independent": _Kind(Independent, "a result of independent", "gpubalance independent -o {}"),
    "layers": _Kind(Layers, "a result of layers", "gpubalance layers -o {}"),
    "queue": _Kind(Queue, "a queue", "gpubalance queue COMMANDS.txt -o {}"),
    "noise": _Kind(Noise, "a noise scale", "the callback split.monitor(noise={!r})"),
}
_ANY = _KINDS["run"]._replace(called="a result of a command that measures or plans")
# A day's run with all its samples takes a few MiB.
_LARGEST_FILE = 32 << 20


def read_record(path: Path, kind: type[Result]) -> Result:
    """Reads a result of one kind. Raises BadInput, saying what the file is instead or which field
    is damaged.
    """
    name = kind.__name__.lower()
    return cast("Result", _read(path, {name}, _KINDS[name]))


def result_of(given: str | Path | Result, kind: type[Result]) -> Result:
    """A script's result of one kind, or the one in its file. Raises BadInput for anything else."""
    if isinstance(given, kind):
        return given
    if not isinstance(given, str | Path):
        wanted = _KINDS[kind.__name__.lower()]
        what = f"{clean(repr(given), 40)} is not {wanted.called}, nor the name of its file"
        raise BadInput(what, remedy=wanted.writes())
    return read_record(Path(given), kind)


def read_result(path: Path) -> AnyResult:
    """Reads a result of any kind. Raises BadInput, saying what the file is instead or which field
    is damaged.
    """
    return cast("AnyResult", _read(path, _KINDS.keys() - {"queue", "noise"}, _ANY))


def read_reported(path: Path) -> Reported:
    """Reads a result of any kind, or a queue; otherwise like `read_result`."""
    return cast("Reported", _read(path, _KINDS.keys() - {"noise"}, _ANY))


def is_estimate(path: Path) -> bool:
    """Whether `--dry-run` wrote the file, so that nothing in it was measured."""
    try:
        document = _document(path, _ANY) if path.is_file() else None  # a pipe may never end
    except (BadInput, OSError):
        return False
    return isinstance(document, dict) and document.get("kind") in estimate.KINDS


def _read(path: Path, names: Container[str], wanted: _Kind) -> Record:
    document = _document(path, wanted)
    found = document.get("kind") if isinstance(document, dict) else None
    if found in estimate.KINDS:
        raise BadInput(
            f"{path} is an estimate that --dry-run wrote: nothing was measured",
            remedy=(
                "give that command again without --dry-run; with the same -o it replaces the "
                "estimate"
            ),
        )
    if not isinstance(found, str) or found not in names:
        what = "is not"
        if isinstance(found, str):
            called = _KINDS[found].called if found in _KINDS else f"a {found}"
            what = f"is {clean(called, 40)}, not"
        raise BadInput(f"{path} {what} {wanted.called}", remedy=wanted.writes())
    kind, version = _KINDS[found], document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise BadInput(
            f"{path} has schema_version {clean(repr(version), 40)}, this gpubalance reads "
            f"{SCHEMA_VERSION}",
            remedy="read it with the gpubalance that wrote it",
        )
    try:
        return kind.record.model_validate(document)
    except ValidationError as error:
        remedy = f"make {kind.called} again"
        raise BadInput(f"{path} is damaged: {first_fault(error)}", remedy=remedy) from None


def _document(path: Path, wanted: _Kind) -> Any:
    """The file's JSON, with its texts made safe to show. It may hold NaN, which validation rejects
    with its place.
    """
    there = os.path.exists(path)  # noqa: PTH110  (which is false of a name that is too long)
    remedy = wanted.writes() if there else wanted.writes(shlex.quote(str(path)))
    content = content_of(path, wanted.called, _LARGEST_FILE, remedy)
    try:
        return _harmless(from_json(content.removeprefix(codecs.BOM_UTF8)))
    except ValueError as error:  # cut off, no JSON, no UTF-8, or deeper than 200 levels
        raise BadInput(f"{path} is not JSON: {clean(str(error))}", remedy=remedy) from None


def _harmless(value: Any) -> Any:
    """Cleans all texts, as names and messages come from drivers and other machines and are printed
    in many places.
    """
    if isinstance(value, str):
        return clean_lines(value)
    if isinstance(value, list):
        return [_harmless(item) for item in value]
    return (
        {key: _harmless(item) for key, item in value.items()} if isinstance(value, dict) else value
    )
