"""Rows of tables as dictionaries: the keys are names of fields and, in order, the table's columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpubalance.render.report.columns import column
from gpubalance.render.report.table import Cell, Table
from gpubalance.results.common import Interval, StepTime
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
    """A table, or none if it has no rows. `labels` are titles that differ from the usual ones."""
    listed = list(rows)
    if not listed:
        return ()
    columns = tuple(column(key, (labels or {}).get(key)) for key in listed[0])
    return (Table(id_, title, columns, tuple(tuple(row.values()) for row in listed), note, long),)


def fields(record: Record | None, *names: str) -> Row:
    """The named fields of a record, all None without a record."""
    return {name: getattr(record, name, None) for name in names}


def interval(name: str, ends: Interval, unit: str = "") -> Row:
    """Both ends of an interval as `NAME_from` and `NAME_to`, followed by the unit; None if unknown."""
    low, high = ends or (None, None)
    return {f"{name}_from{unit}": low, f"{name}_to{unit}": high}


def timings(times: StepTime) -> Iterator[Row]:
    """Each timing, counted from 1, with the time at which it ended if the result has that."""
    ends = times.at_s or (None,) * len(times.samples)
    for number, (at_s, seconds) in enumerate(zip(ends, times.samples, strict=True), 1):
        yield {"sample": number, "at_s": at_s, "step_time_s": seconds}


TELEMETRY_LABELS = {"temperature_c": "hottest", "power_w": "mean power"}


def telemetry(found: Telemetry) -> Row:
    """What a GPU reported while it was watched, without its course."""
    names = ("readings", "duration_s", "temperature_c", "power_w", "energy_j", "sm_clock_mhz", "memory_clock_mhz")
    reasons = reasons_text(found.throttle_reasons)
    return {**fields(found, *names), "throttle_reasons": reasons, **fields(found, "ecc_uncorrected")}


def reasons_text(reasons: Sequence[str] | None) -> str | None:
    """`nothing` if the GPU says that it was not throttled, None if it does not say."""
    return None if reasons is None else ", ".join(reasons) or "nothing"
