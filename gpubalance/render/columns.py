"""The columns of tables: what a record's fields are called, and in which unit they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from gpubalance.results.common import Interval, Result, StepTime, Throughput
from gpubalance.results.probe import SoloRate
from gpubalance.results.run import StepSpread
from gpubalance.settings.record import Record, Shown

Cell = str | int | float | bool | None

# The unit in a field's name, which its label leaves out, and the one that people see.
_SUFFIXES = {
    "_s": "ms",
    "_bytes": "GiB",
    "_c": "°C",
    "_w": "W",
    "_j": "J",
    "_mhz": "MHz",
}
# Records that are figures themselves: a table has them without being asked for their fields.
_FIGURE_RECORDS = {StepTime, Throughput, SoloRate, StepSpread}
# Fields that are no figures: the device heads its row, the others say which result it is.
_LEFT_OUT = {"device", *Result.model_fields}


class Column(NamedTuple):
    """`key` is the name in the result, with its unit; `label` and `unit` are what people see.

    `value` reads the cell from a row's record, in the key's unit, None if that lacks it; table.py
    shows it in `unit`. `has_ratio` is false if the ratio of two cells says nothing. `brief` is the
    head in a terminal's table of devices.
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
        if self.unit not in ("", "×", "text"):
            return f"{self.label}, {self.unit}"
        return self.label

    @property
    def is_text(self) -> bool:
        """Whether the column is aligned to the left."""
        return self.unit == "text"


def named(
    key: str,
    shown: Shown,
    value: Callable[[Any], Cell] = lambda _: None,
    *,
    text: bool = False,
) -> Column:
    """The column of that name: its label and unit are those of `shown`, else what the name says."""
    suffix = next((suffix for suffix in _SUFFIXES if key.endswith(suffix)), "")
    label = (
        key.removesuffix(suffix).replace("_", " ").replace("micro batch", "micro-batch")
    )
    if shown.unit is not None:
        unit = shown.unit
    elif text:
        unit = "text"
    elif key.endswith("throughput"):
        unit = "samples/s"
    else:
        unit = _SUFFIXES.get(suffix, "")
    has_ratio = shown.has_ratio and unit not in ("%", "×")
    return Column(key, shown.label or label, unit, value, has_ratio, shown.brief)


def columns_of(kind: type[Record], *names: str) -> list[Column]:
    """The columns of the fields of these names; if there are none, of all figures and words.

    - A step time, a throughput, a solo rate or an interval has several columns.
    - Another record has those of its figures and words.
    - A record's field, `measured.throughput`, has its own.
    - Any other value has one column.
    """
    columns: list[Column] = []
    for name in names or _figures_of(kind):
        columns += _columns_of_field(kind, name)
    return columns


def _figures_of(kind: type[Record]) -> Iterator[str]:
    """The names of the fields that are figures or words."""
    for name, field in kind.model_fields.items():
        parts = _parts(field.annotation)
        if any(get_origin(part) is tuple for part in parts):
            # An interval, or words. Tuples of records are tables of their own.
            is_figure = field.annotation == Interval or str in parts
        else:
            # A plain value has no records
            is_figure = _records(parts) <= _FIGURE_RECORDS
        if is_figure and name not in _LEFT_OUT:
            yield name


def _parts(annotation: Any) -> list[Any]:
    """The annotation and all that it is made of."""
    parts = [annotation]
    for part in get_args(annotation):
        parts += _parts(part)
    return parts


def _records(parts: list[Any]) -> set[type[Record]]:
    return {
        part for part in parts if isinstance(part, type) and issubclass(part, Record)
    }


def _columns_of_field(kind: type[Record], name: str) -> Iterator[Column]:
    """The columns of a field, by what kind of figure it is."""
    name, _, inner_name = name.partition(".")
    field = kind.model_fields[name]
    parts = _parts(field.annotation)
    records = _records(parts)
    # The parts of an Annotated are its metadata too.
    shown = _joined(
        part for part in (*field.metadata, *parts) if isinstance(part, Shown)
    )
    base = name.removesuffix("_s").removesuffix("_ci95")
    if StepTime in records:
        yield from _step_time_columns(name, base, shown)
    elif Throughput in records:
        yield named(name, shown, _reader(name, "median"))
        yield from _ends(base, "samples/s", name, "ci95")
    elif SoloRate in records:
        yield named(name, shown._replace(unit="samples/s"), _reader(name, "throughput"))
        yield named(f"{name}_batch", Shown("at batch"), _reader(name, "batch"))
    elif records:
        (record,) = records
        inner_columns = (
            columns_of(record, inner_name) if inner_name else columns_of(record)
        )
        for column in inner_columns:
            yield column._replace(value=_within(name, column.value))
    elif field.annotation == Interval:
        # Seconds are shown in ms, and each key of seconds ends in _s.
        suffix = "_s" if shown.unit == "ms" else ""
        yield from _ends(base, shown.unit, name, suffix=suffix)
    else:
        is_text = str in parts or any(get_origin(part) is Literal for part in parts)
        yield named(name, shown, _reader(name), text=is_text)


def _step_time_columns(name: str, base: str, shown: Shown) -> Iterator[Column]:
    prefix = base.removesuffix("step_time")
    yield named(name, shown, _reader(name, "median"))
    yield named(f"{prefix}mad_s", Shown("MAD"), _reader(name, "mad"))
    yield from _ends(base, shown.unit, name, "ci95", suffix="_s")
    # The samples of a step time are timings.
    steps_per_timing = _reader(name, "steps_per_sample")
    yield named(f"{prefix}steps_per_sample", Shown("steps a timing"), steps_per_timing)
    yield named(f"{prefix}samples", Shown("timings"), _reader(name, "samples"))


def _joined(all_shown: Iterable[Shown]) -> Shown:
    """Merges them: each field is as in the first that gives it; a ratio must suit all."""
    joined = Shown()
    for shown in all_shown:
        unit = joined.unit
        if unit is None:
            unit = shown.unit
        joined = Shown(
            joined.label or shown.label,
            unit,
            joined.has_ratio and shown.has_ratio,
            joined.brief or shown.brief,
        )
    return joined


def _ends(
    base: str, unit: str | None, *path: str, suffix: str = ""
) -> Iterator[Column]:
    """Both ends of an interval, as `BASE_from` and `BASE_to`."""
    for place, end in enumerate(("from", "to")):
        shown = Shown(f"{end} (95 %)", unit)
        yield named(f"{base}_{end}{suffix}", shown, _reader(*path, place))


def _reader(*path: str | int) -> Callable[[Any], Cell]:
    """Reads what lies at the end of a path of fields and places; None if the path ends before."""

    def read(record: Any) -> Any:
        value = record
        for step in path:
            if isinstance(step, str):
                value = getattr(value, step, None)
            elif value is not None:
                value = value[step]
        return _cell(value)

    return read


def _cell(value: Any) -> Any:
    """The value as a table shows it: of a tuple its words, or how many records it has."""
    if not isinstance(value, tuple):
        return value
    if all(isinstance(item, str) for item in value):
        return ", ".join(value) or "nothing"
    return len(value)


def _within(name: str, value: Callable[[Any], Cell]) -> Callable[[Any], Cell]:
    """Reads the value from the record in a field."""
    return lambda record: value(getattr(record, name, None))
