"""The columns of tables: what a record's fields are called, in which unit they are
shown, and how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple, get_args, get_origin

from gpubalance.numbers.units import (
    NOT_AVAILABLE,
    format_bytes,
    format_percent,
    format_rate,
    format_seconds,
)
from gpubalance.render.table import WIDTH, TextTable, shorten, shorten_front
from gpubalance.results.common import Interval, Result, StepTime, Throughput
from gpubalance.results.probe import SoloRate
from gpubalance.results.run import StepSpread
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record, Shown

Cell = str | int | float | bool | None

# The unit in a field's name, which its label leaves out, and the one that people see.
_SUFFIXES = {"_s": "ms", "_bytes": "GiB", "_c": "°C", "_w": "W", "_j": "J", "_mhz": "MHz"}
# Factors from the result's unit to the displayed one.
_SCALES = {"ms": 1e3, "µs": 1e6, "GiB": 2.0**-30, "%": 100.0}
_NAME_WIDTH = 22
# Records that are figures themselves, which a table has without being asked for their fields.
_NO_FIGURES = {"device", *Result.model_fields}
_FIGURES = {StepTime, Throughput, SoloRate, StepSpread}


class Column(NamedTuple):
    """`key` is the name in the result, with its unit; `label` and `unit` are what people see.

    `value` reads the cell from a row's record, None if that does not know it.
    """

    key: str
    label: str
    unit: str = ""
    value: Callable[[Any], Cell] = lambda _: None
    has_ratio: bool = True
    brief: str = ""

    @property
    def head(self) -> str:
        """The title with its unit: `step time, ms`."""
        return f"{self.label}, {self.unit}" if self.unit not in ("", "×", "text") else self.label

    @property
    def is_text(self) -> bool:
        """Whether the column is aligned to the left."""
        return self.unit == "text"


def named(
    key: str, shown: Shown, value: Callable[[Any], Cell] = lambda _: None, *, text: bool = False
) -> Column:
    """The column of that name: its label and unit are those of `shown`, else what the name says."""
    suffix = next((one for one in _SUFFIXES if key.endswith(one)), "")
    unit = (
        "text" if text else "samples/s" if key.endswith("throughput") else _SUFFIXES.get(suffix, "")
    )
    label = key.removesuffix(suffix).replace("_", " ").replace("micro batch", "micro-batch")
    unit = unit if shown.unit is None else shown.unit
    return Column(
        key,
        shown.label or label,
        unit,
        value,
        shown.has_ratio and unit not in ("%", "×"),
        shown.brief,
    )


def columns_of(kind: type[Record], *names: str) -> tuple[Column, ...]:
    """The columns of the fields of these names; without names of all that are figures or words, in
    their order.

    Step times, throughputs and intervals have several columns each, a record that is named those of
    its fields, or of the one after a dot: `measured.throughput`.
    """
    fields = kind.model_fields
    own = (
        name for name in fields if name not in _NO_FIGURES and _is_plain(fields[name].annotation)
    )
    return tuple(column for name in names or own for column in _of_field(kind, name))


def _parts(annotation: Any) -> list[Any]:
    """The annotation and all that it is made of."""
    return [annotation, *(inner for part in get_args(annotation) for inner in _parts(part))]


def _records(parts: list[Any]) -> set[type[Record]]:
    return {one for one in parts if isinstance(one, type) and issubclass(one, Record)}


def _is_plain(annotation: Any) -> bool:
    parts = _parts(annotation)
    if any(get_origin(part) is tuple for part in parts):
        return annotation == Interval or str in parts
    return _records(parts) <= _FIGURES


def _of_field(kind: type[Record], name: str) -> Iterator[Column]:
    name, _, inside = name.partition(".")
    field = kind.model_fields[name]
    parts = _parts(field.annotation)
    found = [one for one in (*field.metadata, *parts) if isinstance(one, Shown)]
    shown = reduce(_joined, found, Shown())
    of, base = _records(parts), name.removesuffix("_s").removesuffix("_ci95")
    if inside or (of and not of & _FIGURES) or StepSpread in of:
        for inner in (column for one in of for column in columns_of(one, *filter(None, [inside]))):
            yield inner._replace(value=_within(name, inner.value))
    elif StepTime in of:
        which = base.removesuffix("step_time")
        yield named(name, shown, _reader(name, "median"))
        yield named(f"{which}mad_s", Shown("MAD"), _reader(name, "mad"))
        yield from _ends(base, shown, name, "ci95", suffix="_s")
        yield named(
            f"{which}steps_per_sample", Shown("steps a timing"), _reader(name, "steps_per_sample")
        )
        yield named(f"{which}samples", Shown("timings"), _reader(name, "samples"))
    elif Throughput in of:
        yield named(name, shown, _reader(name, "median"))
        yield from _ends(base, shown._replace(unit="samples/s"), name, "ci95")
    elif SoloRate in of:
        yield named(name, shown._replace(unit="samples/s"), _reader(name, "throughput"))
        yield named(f"{name}_batch", Shown("at batch"), _reader(name, "batch"))
    elif field.annotation == Interval:
        yield from _ends(base, shown, name, suffix="_s" if shown.unit == "ms" else "")
    else:
        is_text = str in parts or any(get_origin(part) is Literal for part in parts)
        yield named(name, shown, _reader(name), text=is_text)


def _joined(one: Shown, other: Shown) -> Shown:
    """What the first does not say is as in the other."""
    unit = other.unit if one.unit is None else one.unit
    return Shown(
        one.label or other.label, unit, one.has_ratio and other.has_ratio, one.brief or other.brief
    )


def _ends(base: str, shown: Shown, *path: str, suffix: str = "") -> Iterator[Column]:
    """Both ends of an interval, as `BASE_from` and `BASE_to`."""
    for at, end in enumerate(("from", "to")):
        yield named(f"{base}_{end}{suffix}", Shown(f"{end} (95 %)", shown.unit), _reader(*path, at))


def _reader(*path: str | int) -> Callable[[Any], Cell]:
    """Reads what lies at the end of a path of fields and places; None if a record on the way lacks
    the next.
    """

    def read(record: Any) -> Cell:
        for step in path:
            record = (
                record and record[step] if isinstance(step, int) else getattr(record, step, None)
            )
        if isinstance(record, tuple):
            texts = all(isinstance(one, str) for one in record)
            return ", ".join(record) or "nothing" if texts else len(record)
        value: Cell = record
        return value

    return read


def _within(name: str, value: Callable[[Any], Cell]) -> Callable[[Any], Cell]:
    return lambda record: value(getattr(record, name, None))


def exact(cell: Cell, column: Column) -> str:
    """The number in the column's unit, with all seven digits that a result keeps."""
    if cell is None:
        return NOT_AVAILABLE
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, str):
        return cell
    value = cell * _SCALES.get(column.unit, 1.0) if column.unit in _SCALES else cell
    if isinstance(value, int) or value == 0 or abs(value) >= 1e7:
        return f"{value or 0:.0f}"
    return f"{value:.7g}"


def rounded(cell: Cell, column: Column) -> str:
    """The number in the column's unit, with four digits: 54.75, and 5882 or 12345. Whole ones stay
    as they are.
    """
    text = exact(cell, column)
    is_whole = isinstance(cell, int) and column.unit not in _SCALES
    if cell is None or isinstance(cell, str) or is_whole:
        return text
    value = float(text)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def short(cell: Cell, column: Column) -> str:
    """The number as the terminal shows it, with its own unit if it is a time or a size."""
    if cell is None or isinstance(cell, (bool, str)):
        return exact(cell, column)
    if column.unit in ("s", "ms", "µs"):
        return format_seconds(cell)
    if column.unit == "GiB":
        return format_bytes(round(cell))
    if column.unit == "%":
        return format_percent(cell, 1)
    if column.unit == "samples/s" and cell:
        return format_rate(cell)
    if column.unit == "×":
        return f"{cell:.3f}"
    return str(cell) if isinstance(cell, int) else f"{cell or 0:.4g}"


def names_of(devices: Sequence[Device]) -> Callable[[Any], str]:
    """What leads a row of a table of devices, with its name."""
    return lambda one: shorten(devices[one.device].name, _NAME_WIDTH)


def device_grid(
    devices: Sequence[Device], records: Sequence[Any], leads: Mapping[str, Callable[[Any], str]]
) -> TextTable:
    """A terminal's table of devices: what leads each row, by its head, and the record's fields that
    have a brief one.

    Beside compute stands how much of the step it is. Names, which have no head, make room for the
    others; their ends are kept, which tell one model from another.
    """
    columns = [column for column in columns_of(type(records[0])) if column.brief]
    rows = [["device", *leads, *(column.brief for column in columns)]]
    for one in records:
        first = [tell(one) for tell in leads.values()]
        rows.append(
            [devices[one.device].label, *first, *(_beside(column, one) for column in columns)]
        )
    excess = sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True)) - 2 - WIDTH
    if excess > 0 and not rows[0][1]:
        room = max(len(row[1]) for row in rows) - excess
        rows = [[row[0], shorten_front(row[1], room), *row[2:]] for row in rows]
    return TextTable(rows)


def _beside(column: Column, record: Record) -> str:
    if getattr(record, "batch", None) == 0:
        return ""
    part = getattr(record, "utilisation", None) if column.key == "compute_s" else None
    return short(column.value(record), column) + (
        f" ({format_percent(part)})" if part is not None else ""
    )
