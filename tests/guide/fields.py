"""Makes the tables of the chapter on results.

A table has a row for each field of a record, by its path in the JSON.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

# Units of fields, by patterns of the whole name.
_UNITS = {
    r".*bytes_per_s": "bytes/s",
    r"(peak_)?flops_per_s": "FLOP/s",
    r"flops_per_sample": "FLOP",
    r"samples_per_joule": "samples/J",
    r".*_s|seconds": "s",
    r"(.*_)?bytes": "bytes",
    r".*_c": "°C",
    r".*_w": "W",
    r".*_j": "J",
    r".*_mhz": "MHz",
    r"(.*_)?throughput|solo_sum|at_global_batch": "samples/s",
    r"(.*_)?batch(es)?|limit|plateau|fits|fails|batch_multiple": "samples",
    r"(.*_)?steps(_per_sample)?": "steps",
}
# Units of a record's numbers by the record's own name.
_INSIDE = {"step_time_s": "s", "throughput": "samples/s", "solo_gap": "samples/s"}
# Fields that are plain numbers although they have a name of samples.
_COUNTS = {"Layers.micro_batches", "StepTask.micro_batch"}
_WORDS = {bool: "true or false", str: "text"}


def rows(
    record: type[BaseModel], told: set[type[BaseModel]], path: str = "", unit: str = ""
) -> Iterator[list[str]]:
    """Each field's path and what it holds, depth first.

    Records in `told` have a table elsewhere.
    """
    told.add(record)
    for name, field in record.model_fields.items():
        of = next(
            (u for pattern, u in _UNITS.items() if re.fullmatch(pattern, name)),
            unit or "number",
        )
        of = "number" if f"{record.__name__}.{name}" in _COUNTS else of
        yield [f"`{path}{name}`", _holds(field.annotation, of)]
        for inner, dots in _records(field.annotation, "."):
            if inner not in told:
                of_inner = _INSIDE.get(name, "")
                yield from rows(inner, told, f"{path}{name}{dots}", of_inner)


def _records(annotation: Any, dots: str) -> Iterator[tuple[type[BaseModel], str]]:
    """The records in an annotation, with the text between the field's name and theirs.

    That text is `[].`, for example.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, dots
    for part in get_args(annotation):
        yield from _records(part, "[]." if get_origin(annotation) is tuple else dots)


def _holds(annotation: Any, unit: str) -> str:
    """What a field holds, in words: `list of s or null`."""
    kind = get_origin(annotation)
    parts = get_args(annotation)
    if kind is Annotated:
        return _holds(parts[0], unit)
    if kind in (Union, types.UnionType, Literal):
        return " or ".join(_holds(part, unit) for part in parts)
    if kind is tuple and parts[1:] == (...,):
        inner = _holds(parts[0], unit)
        return f"list of {'objects' if inner == 'object' else inner}"
    if kind is tuple:
        return f"[{', '.join(_holds(part, unit) for part in parts)}]"
    if kind is dict:
        return f"{_holds(parts[1], unit)} by device"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "object"
    if annotation is type(None):
        return "null"
    if isinstance(annotation, type):
        return _WORDS.get(annotation, unit)
    return str(annotation)
