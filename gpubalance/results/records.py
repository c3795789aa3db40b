"""Results that were written to files, read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar, cast

from pydantic import ValidationError

from gpubalance.config import Record
from gpubalance.errors import BadInput
from gpubalance.results.common import SCHEMA_VERSION
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.run import Run

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
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadInput(f"can't read {path}: {error.strerror}", remedy=f"give the file of a {wanted}") from None
    except (ValueError, RecursionError):
        raise BadInput(f"{path} is no JSON", remedy=f"gpubalance {maker} -o FILE writes one") from None
    found = document.get("kind") if isinstance(document, dict) else None
    if found not in kinds:
        what = f"a {found}" if isinstance(found, str) else "no result of gpubalance's"
        raise BadInput(f"{path} is {what[:40]}, not a {wanted}", remedy=f"gpubalance {maker} -o FILE writes one")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise BadInput(
            f"{path} has schema_version {document.get('schema_version')!r}, this gpubalance reads {SCHEMA_VERSION}",
            remedy="read it with the gpubalance that wrote it",
        )
    try:
        return _KINDS[found].model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"{path} is damaged: {where}: {first['msg']}", remedy=f"make the {found} again") from None
