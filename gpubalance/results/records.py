"""Reads results from files."""

from __future__ import annotations

import codecs
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError
from pydantic_core import from_json

from gpubalance.errors import BadInput
from gpubalance.results import estimate
from gpubalance.results.common import SCHEMA_VERSION, UNSOUND
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.noise import Noise
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.run import Run
from gpubalance.settings.record import Record
from gpubalance.settings.told import fault_text
from gpubalance.system.near import meant
from gpubalance.text import clean, clean_lines

Result = TypeVar("Result", Probe, Plan, Run, Independent, Layers, Noise)
AnyResult = Probe | Plan | Run | Independent | Layers
_RESULTS = ("probe", "plan", "run", "independent", "layers")
_KINDS: dict[str, type[AnyResult | Noise]] = {
    "probe": Probe, "plan": Plan, "run": Run, "independent": Independent, "layers": Layers, "noise": Noise
}  # fmt: skip
# The command that writes the best of each kind.
_MAKERS = {
    "probe": "gpubalance probe -o {}",
    "plan": "gpubalance balance -o {}",
    "run": "gpubalance run -o {}",
    "independent": "gpubalance independent -o {}",
    "layers": "gpubalance layers -o {}",
    "noise": "the callback split.monitor(noise={!r})",
}
# A day's run with all its samples takes a few MiB.
_LARGEST_FILE = 32 << 20


def read_record(path: Path, kind: type[Result]) -> Result:
    """Reads a result of one kind. Raises BadInput, saying what the file is instead or which field is damaged."""
    return cast("Result", _read(path, [kind.__name__.lower()]))


def result_of(given: str | Path | Result, kind: type[Result]) -> Result:
    """A script's result of one kind, or the one in its file. Raises BadInput for anything else."""
    if isinstance(given, kind):
        return given
    if not isinstance(given, str | Path):
        name = kind.__name__.lower()
        raise BadInput(
            f"{clean(repr(given), 40)} is not {_called(name)}, nor the name of its file",
            remedy=f"{_MAKERS[name].format('FILE')} writes one",
        )
    return read_record(Path(given), kind)


def read_result(path: Path) -> AnyResult:
    """Reads a result of any kind. Raises BadInput, saying what the file is instead or which field is damaged."""
    return cast("AnyResult", _read(path, list(_RESULTS)))


def is_estimate(path: Path) -> bool:
    """Whether `--dry-run` wrote the file, so that nothing in it was measured."""
    try:
        document = _document(path, "result", lambda _: "") if path.is_file() else None  # a pipe may never end
    except (BadInput, OSError):
        return False
    return isinstance(document, dict) and document.get("kind") in estimate.KINDS


def _read(path: Path, kinds: list[str]) -> Record:
    wanted = _called(kinds[0]) if len(kinds) == 1 else "a result of a command that measures or plans"

    def writes_one(file: str) -> str:
        return f"{_MAKERS[kinds[0] if len(kinds) == 1 else 'run'].format(file)} writes one"

    document = _document(path, wanted, writes_one)
    remedy = writes_one("FILE")
    found = document.get("kind") if isinstance(document, dict) else None
    if found in estimate.KINDS:
        raise BadInput(
            f"{path} is an estimate that --dry-run wrote: nothing was measured",
            remedy="give that command again without --dry-run; with the same -o it replaces the estimate",
        )
    if not isinstance(document, dict) or found not in kinds:
        what = f"is {clean(_called(found), 40)}, not" if isinstance(found, str) else "is not"
        raise BadInput(f"{path} {what} {wanted}", remedy=remedy)
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise BadInput(
            f"{path} has schema_version {clean(repr(version), 40)}, this gpubalance reads {SCHEMA_VERSION}",
            remedy="read it with the gpubalance that wrote it",
        )
    try:
        return _KINDS[str(found)].model_validate(document)
    except ValidationError as error:
        raise BadInput(
            f"{path} is damaged: {_first_fault(error)}", remedy=f"make {_called(str(found))} again"
        ) from None


def _called(kind: str) -> str:
    """`a plan`: a name for the kind that a file says it is."""
    others = {"independent": "a result of independent", "layers": "a result of layers", "noise": "a noise scale"}
    return others.get(kind, f"a {kind}")


def _first_fault(error: ValidationError) -> str:
    """The path of the first wrong field, and what is wrong with it."""
    first = error.errors(include_url=False)[0]
    where, what = clean(".".join(map(str, first["loc"])), 100), fault_text(first)
    if first["type"] == UNSOUND:
        what = what.replace(": ", ".", 1)
    return f"{where}{what}" if where else what.lstrip(": .")


def _document(path: Path, wanted: str, writes_one: Callable[[str], str]) -> object:
    """The file's JSON, with its texts made safe to show. It may hold NaN, which validation rejects with its place.

    `writes_one` gives the command that writes such a file.
    """
    remedy = writes_one("FILE")
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)  # a device has no size, so stop here
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        why = getattr(error, "strerror", None) or str(error)
        made = writes_one(shlex.quote(str(path))) if isinstance(error, FileNotFoundError) else remedy
        raise BadInput(f"can't read {path}: {why}", remedy=meant(path, made)) from None
    if len(content) > _LARGEST_FILE:
        raise BadInput(f"{path} is larger than {_LARGEST_FILE >> 20} MiB: that is not {wanted}", remedy=remedy)
    try:
        return _harmless(from_json(content.removeprefix(codecs.BOM_UTF8)))
    except ValueError as error:  # cut off, no JSON, no UTF-8, or deeper than 200 levels
        raise BadInput(f"{path} is not JSON: {clean(str(error))}", remedy=remedy) from None


def _harmless(value: Any) -> Any:
    """Cleans all texts, as names and messages come from drivers and other machines and are printed in many places."""
    if isinstance(value, str):
        return clean_lines(value)
    if isinstance(value, list):
        return [_harmless(item) for item in value]
    return {key: _harmless(item) for key, item in value.items()} if isinstance(value, dict) else value
