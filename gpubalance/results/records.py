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

from gpubalance.errors import BadInput, UsageError
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

_Result = TypeVar("_Result", Probe, Plan, Run, Independent, Layers, Queue, Noise)
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
    "independent": _Kind(
        Independent, "a result of independent", "gpubalance independent -o {}"
    ),
    "layers": _Kind(Layers, "a result of layers", "gpubalance layers -o {}"),
    "queue": _Kind(Queue, "a queue", "gpubalance queue COMMANDS.txt -o {}"),
    "noise": _Kind(Noise, "a noise scale", "the callback split.monitor(noise={!r})"),
}
_ANY = _KINDS["run"]._replace(called="a result of a command that measures or plans")
# What is no result, by its ending
_WRITTEN_BY_REPORT = {
    ".md": "--markdown prints a report of them, and `> FILE.md` saves it",
    ".html": "--html FILE.html writes a page of them",
}
# A day's run with all its samples takes a few MiB.
_LARGEST_FILE = 32 << 20


def read_record(path: Path, kind: type[_Result]) -> _Result:
    """Reads a result of one kind. Raises BadInput, saying what the file is or what is damaged."""
    name = kind.__name__.lower()
    return cast("_Result", _read(path, {name}, _KINDS[name]))


def result_of(source: str | Path | _Result, kind: type[_Result]) -> _Result:
    """A script's result of one kind, or the one in its file. Raises BadInput for anything else."""
    if isinstance(source, kind):
        return source
    if isinstance(source, str | Path):
        return read_record(Path(source), kind)
    wanted = _KINDS[kind.__name__.lower()]
    what = (
        f"{clean(repr(source), 40)} is neither {wanted.called} nor the name of a file "
        "that contains one"
    )
    raise BadInput(what, remedy=wanted.writes())


def read_result(path: Path) -> AnyResult:
    """Reads a result of any kind. Raises BadInput, saying what the file is or what is damaged."""
    return cast("AnyResult", _read(path, _KINDS.keys() - {"queue", "noise"}, _ANY))


def read_reported(path: Path) -> Reported:
    """Reads a result of any kind, or a queue; otherwise like `read_result`."""
    return cast("Reported", _read(path, _KINDS.keys() - {"noise"}, _ANY))


def is_estimate(path: Path) -> bool:
    """Whether `--dry-run` wrote the file, so that nothing in it was measured."""
    try:
        if not path.is_file():  # a pipe may never end
            return False
        document = _document(path, _ANY)
    except (BadInput, UsageError, OSError):
        return False
    return isinstance(document, dict) and document.get("kind") in estimate.KINDS


def _read(path: Path, names: Container[str], wanted: _Kind) -> Record:
    document = _document(path, wanted)
    name = document.get("kind") if isinstance(document, dict) else None
    if name in estimate.KINDS:
        again = "give that command again without --dry-run"
        raise BadInput(
            f"{path} is an estimate that --dry-run wrote: nothing was measured",
            remedy=f"{again}; the same -o overwrites the estimate",
        )
    if not isinstance(name, str):
        raise BadInput(f"{path} is not {wanted.called}", remedy=wanted.writes())
    if name not in names:
        called = _KINDS[name].called if name in _KINDS else clean(f"a {name}", 40)
        raise BadInput(
            f"{path} is {called}, not {wanted.called}", remedy=wanted.writes()
        )
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        version_text = clean(repr(version), 40)
        raise BadInput(
            f"{path} has schema_version {version_text}, this gpubalance reads {SCHEMA_VERSION}",
            remedy="read it with the gpubalance that wrote it",
        )
    kind = _KINDS[name]
    try:
        return kind.record.model_validate(document)
    except ValidationError as error:
        fault = f"{path} is damaged: {first_fault(error)}"
        raise BadInput(fault, remedy=f"make {kind.called} again") from None


def _document(path: Path, wanted: _Kind) -> Any:
    """The file's JSON, with its texts made safe to show; validation rejects NaN with its place."""
    there = os.path.exists(path)  # noqa: PTH110  (which is false of a name that is too long)
    remedy = wanted.writes() if there else wanted.writes(shlex.quote(str(path)))
    if not there and path.suffix in _WRITTEN_BY_REPORT:
        remedy = f"give result files (JSON): {_WRITTEN_BY_REPORT[path.suffix]}"
    content = content_of(path, wanted.called, _LARGEST_FILE, remedy)
    try:
        return _harmless(from_json(content.removeprefix(codecs.BOM_UTF8)))
    except ValueError as error:  # cut off, no JSON, no UTF-8, or deeper than 200 levels
        raise BadInput(
            f"{path} is not JSON: {clean(str(error))}", remedy=remedy
        ) from None


def _harmless(value: Any) -> Any:
    """Cleans all texts: names and messages come from drivers and other machines."""
    if isinstance(value, str):
        return clean_lines(value)
    if isinstance(value, list):
        return [_harmless(item) for item in value]
    if isinstance(value, dict):
        return {key: _harmless(item) for key, item in value.items()}
    return value
