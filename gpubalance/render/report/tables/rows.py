"""Rows of tables, a dictionary each: its keys are the names of the fields and so the table's columns, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpubalance.render.report.columns import column
from gpubalance.render.report.table import Cell, Table
from gpubalance.results.common import Interval
from gpubalance.results.telemetry import Telemetry
from gpubalance.settings.record import Record

Row = dict[str, Cell]


def table(
    id_: str,
    title: str,
    rows: Iterable[Row],
    note: str = "",
    *,
    long: bool = False,
    labels: Mapping[str, str] | None = None,
) -> tuple[Table, ...]:
    """The table, or none where it would have no rows; `labels` are of columns that this table calls otherwise."""
    listed = list(rows)
    if not listed:
        return ()
    columns = tuple(column(key, (labels or {}).get(key)) for key in listed[0])
    return (Table(id_, title, columns, tuple(tuple(row.values()) for row in listed), note, long),)


def fields(record: Record | None, *names: str) -> Row:
    """These fields of a record; unknown where there is no record."""
    return {name: getattr(record, name, None) for name in names}


def interval(name: str, ends: Interval, unit: str = "") -> Row:
    """Both ends of an interval, or unknown ones: `name_from`, `name_to`, with the unit behind it."""
    low, high = ends or (None, None)
    return {f"{name}_from{unit}": low, f"{name}_to{unit}": high}


TELEMETRY_LABELS = {"temperature_c": "hottest", "power_w": "mean power"}


def telemetry(found: Telemetry) -> Row:
    """How a GPU was while it was watched."""
    names = ("readings", "duration_s", "temperature_c", "power_w", "energy_j", "sm_clock_mhz", "memory_clock_mhz")
    reasons = reasons_text(found.throttle_reasons)
    return {**fields(found, *names), "throttle_reasons": reasons, **fields(found, "ecc_uncorrected")}


def reasons_text(reasons: Sequence[str] | None) -> str | None:
    """`nothing` where it told that it was not throttled; None where it did not tell."""
    return None if reasons is None else ", ".join(reasons) or "nothing"
