"""Results that were written to files, read again."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path
from typing import TypeVar, cast

from pydantic import ValidationError
from pydantic_core import from_json

from gpubalance.config import Record
from gpubalance.errors import BadInput
from gpubalance.files import read_limited
from gpubalance.results.common import SCHEMA_VERSION
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.run import Run
from gpubalance.text import clean

# A run of a day has about 10 MiB.
_LARGEST_FILE = 64 << 20

Result = TypeVar("Result", Probe, Plan, Run)
_KINDS: dict[str, type[Probe] | type[Plan] | type[Run]] = {"probe": Probe, "plan": Plan, "run": Run}


def read_record(path: Path, kind: type[Result]) -> Result:
    """The result of one kind in a file. Raises BadInput with what the file is instead."""
    return cast("Result", _read(path, [kind.__name__.lower()]))


def read_result(path: Path) -> Probe | Plan | Run:
    """The result in a file, of whatever kind. Raises BadInput with what the file is instead."""
    return cast("Probe | Plan | Run", _read(path, list(_KINDS)))


def _read(path: Path, kinds: list[str]) -> Record:
    wanted = " or ".join(kinds)
    maker = kinds[0] if len(kinds) == 1 else "run"
    give = f"give the file of a {wanted}"
    try:
        content = read_limited(path, _LARGEST_FILE, wanted, remedy=give)
    except OSError as error:
        raise BadInput(f"can't read {path}: {error.strerror}", remedy=give) from None
    try:
        # Of a text that nests deeper than any result it says so, where Python's own reader may run out of stack.
        document = from_json(content.removeprefix(BOM_UTF8))
    except ValueError as error:
        why = clean(str(error), 80)
        raise BadInput(f"{path} is no JSON: {why}", remedy=f"gpubalance {maker} -o FILE writes one") from None
    found = document.get("kind") if isinstance(document, dict) else None
    if found not in kinds:
        what = f"a {clean(found, 40)}" if isinstance(found, str) else "no result of gpubalance's"
        raise BadInput(f"{path} is {what}, not a {wanted}", remedy=f"gpubalance {maker} -o FILE writes one")
    if document.get("schema_version") != SCHEMA_VERSION:
        version = clean(repr(document.get("schema_version")), 40)
        raise BadInput(
            f"{path} has schema_version {version}, this gpubalance reads {SCHEMA_VERSION}",
            remedy="read it with the gpubalance that wrote it",
        )
    try:
        return _KINDS[found].model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = clean(".".join(map(str, first["loc"])))
        raise BadInput(f"{path} is damaged: {where}: {clean(first['msg'])}", remedy=f"make the {found} again") from None
