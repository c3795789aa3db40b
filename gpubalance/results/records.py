"""Results that were written to files, read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from gpubalance.config import Record
from gpubalance.errors import BadInput
from gpubalance.results.common import SCHEMA_VERSION

Result = TypeVar("Result", bound=Record)


def read_record(path: Path, kind: type[Result]) -> Result:
    """The result in a file. Raises BadInput with what the file is instead."""
    wanted = kind.__name__.lower()
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadInput(f"can't read {path}: {error.strerror}", remedy=f"give the file of a {wanted}") from None
    except ValueError:
        raise BadInput(f"{path} is no JSON", remedy=f"gpubalance {wanted} -o FILE writes one") from None
    found = document.get("kind") if isinstance(document, dict) else None
    if found != wanted:
        what = f"a {found}" if isinstance(found, str) else "no result of gpubalance's"
        raise BadInput(f"{path} is {what[:40]}, not a {wanted}", remedy=f"gpubalance {wanted} -o FILE writes one")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise BadInput(
            f"{path} has schema_version {document.get('schema_version')!r}, this gpubalance reads {SCHEMA_VERSION}",
            remedy="read it with the gpubalance that wrote it",
        )
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"{path} is damaged: {where}: {first['msg']}", remedy=f"make the {wanted} again") from None
