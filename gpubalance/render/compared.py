"""The figures of two results side by side, with their ratio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.numbers.units import format_percent, format_rate
from gpubalance.render.fields import Column, columns_of, named, short
from gpubalance.render.table import shorten, shorten_front, table
from gpubalance.results.comparison import Against, ComparedDevice, ComparedResult, DeviceRatio
from gpubalance.settings.record import Record, Shown
from gpubalance.settings.shares import pieces_text

_NARROW = 60  # below this width there is no room for the ratio
_HEAD_WIDTH, _NARROW_HEAD_WIDTH = 20, 11


# Parts of a step that not every device has: no row where both have none.
_GLOBAL = named("global_batch", Shown(), lambda result: result.global_batch)
_IF_ANY = ("update_s",)
_IN_A_SPLIT = (
    *("throughput", "step_time_s", "step_spread", "sync_s", "imbalance"),
    *("speedup_over_even", "even_global_batch", "scaling_efficiency"),
)


def _figures(kind: type[Record], *names: str) -> list[Column]:
    """The columns that are compared: numbers, but for batches, which have a row of their own, and ends of intervals."""
    columns = columns_of(kind, *names)
    ends = ("_from", "_to")
    return [c for c in columns if not c.is_text and c.key not in ("batch", "micro_batch") and not c.key.endswith(ends)]


_Row = tuple[str, str, str, str]  # its name, both figures and their ratio


def column_heads(baseline: str, other: str, width: int) -> tuple[str, str]:
    """The files' names, cut to a column's width but different for different files."""
    room = _NARROW_HEAD_WIDTH if width < _NARROW else _HEAD_WIDTH
    for cut in (shorten_front, shorten):
        heads = cut(baseline, room), cut(other, room)
        if baseline == other or heads[0] != heads[1]:
            return heads
    return "baseline", "other"


def figures(
    baseline: ComparedResult, other: ComparedResult, against: Against, heads: tuple[str, str], width: int
) -> list[str]:
    """A table: the split's figures, then each device's under its name, without rows that are empty in both results."""
    sections = [("", _rows([_GLOBAL, *_figures(ComparedResult, *_IN_A_SPLIT)], baseline, other))]
    for one in against.devices:
        before = None if one.baseline is None else baseline.devices[one.baseline]
        after = None if one.other is None else other.devices[one.other]
        sections.append((shorten(_title(before, after), width), [*_of_a_device(before, after), *_of_points(one)]))
    rows = [("", *heads, "ratio"), *(row for _, rows in sections for row in rows)]
    columns = 3 if width < _NARROW else 4
    head, *lines = table([row[:columns] for row in rows])
    shown, rest = [head], iter(lines)
    for title, rows in sections:
        shown += [*([title] if title else []), *(next(rest) for _ in rows)]
    return shown


def _title(before: ComparedDevice | None, after: ComparedDevice | None) -> str:
    named = [f"{device.label} {device.name}" for device in (before, after) if device is not None]
    return " → ".join(dict.fromkeys(named))


def _of_a_device(before: ComparedDevice | None, after: ComparedDevice | None) -> list[_Row]:
    batches = _batch(before), _batch(after)
    first = [("  batch", *batches, "")] if any(batches) else []
    return [*first, *_rows(_figures(ComparedDevice), before, after, "  ")]


def _batch(device: ComparedDevice | None) -> str:
    """`820`, or `2×820` in micro-batches; empty for a probe's device or none."""
    if device is None or device.batch is None:
        return ""
    return pieces_text(device.batch, device.micro_batch or device.batch)


def _of_points(one: DeviceRatio) -> Iterator[_Row]:
    """Samples per second at each batch size that both curves have."""
    for point in one.points:
        ratio, interval = f"{point.ratio.value:.3f}", point.ratio.ci95
        if interval is not None:
            ratio += f" ± {format_percent((interval[1] - interval[0]) / 2 / point.ratio.value, 1)}"
        yield f"  at {point.batch}", format_rate(point.baseline), format_rate(point.other), ratio


def _rows(columns: Sequence[Column], baseline: Record | None, other: Record | None, indent: str = "") -> list[_Row]:
    """One row for each figure that either has. A device that is in only one result has empty cells for the other."""
    rows = []
    for column in columns:
        before, after = (None if one is None else column.value(one) for one in (baseline, other))
        if (before is None and after is None) or (column.key in _IF_ANY and not before and not after):
            continue
        cells = ["" if one is None else short(cell, column) for one, cell in ((baseline, before), (other, after))]
        ratio = ""
        if isinstance(before, int | float) and isinstance(after, int | float) and before and after and column.has_ratio:
            ratio = f"{after / before:.3f}"
        rows.append((f"{indent}{column.label}", cells[0], cells[1], ratio))
    return rows
