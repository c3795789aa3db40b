"""The figures of two results side by side, with their ratio."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from gpubalance.numbers.units import NOT_AVAILABLE, format_bytes, format_percent, format_rate, format_seconds
from gpubalance.render.table import shorten, shorten_front, table
from gpubalance.results.comparison import Against, ComparedDevice, ComparedResult, DeviceRatio
from gpubalance.settings.record import Record
from gpubalance.settings.shares import pieces_text

_NARROW = 60  # below this width there is no room for the ratio
_HEAD_WIDTH, _NARROW_HEAD_WIDTH = 20, 11


class _Figure(NamedTuple):
    """`path` leads to the number within a record. Figures near 0, and those that already are ratios, get no ratio."""

    name: str
    path: str
    text: Callable[[float], str]
    has_ratio: bool = True
    if_any: bool = False  # no row if it is 0 in both


_OF_A_SPLIT = (
    _Figure("global batch", "global_batch", str),
    _Figure("samples/s", "throughput.median", format_rate),
    _Figure("step", "step_time_s", format_seconds),
    _Figure("  half up to", "step_spread.p50_s", format_seconds),
    _Figure("  95 % up to", "step_spread.p95_s", format_seconds),
    _Figure("sync", "sync_s", format_seconds, has_ratio=False),
    _Figure("imbalance", "imbalance", "{:.3f}".format, has_ratio=False),
    _Figure("× even split", "speedup_over_even", "{:.3f}".format, has_ratio=False),
    _Figure("  its batch", "even_global_batch", str, has_ratio=False),
    _Figure("of solo sum", "scaling_efficiency", lambda x: format_percent(x, 1), has_ratio=False),
)
_OF_A_DEVICE = (
    _Figure("  samples/s", "throughput", format_rate),
    _Figure("  alone", "solo_throughput", format_rate),
    _Figure("  contention", "contention", lambda x: format_percent(x, 1), has_ratio=False),
    _Figure("  compute", "compute_s", format_seconds),
    _Figure("  update", "update_s", format_seconds, has_ratio=False, if_any=True),
    _Figure("  wait", "wait_s", format_seconds, has_ratio=False),
    _Figure("  memory", "memory_peak_bytes", lambda x: format_bytes(int(x))),
    _Figure("  limit", "limit", str),
    _Figure("  best", "solo_best.throughput", format_rate),
    _Figure("  best batch", "solo_best.batch", str),
    _Figure("  α", "alpha_s", format_seconds),
    _Figure("  β", "beta_s", format_seconds),
)


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
    sections = [("", _rows(_OF_A_SPLIT, baseline, other))]
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
    return [*first, *_rows(_OF_A_DEVICE, before, after)]


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


def _rows(figures: Sequence[_Figure], baseline: Record | None, other: Record | None) -> list[_Row]:
    """One row for each figure that either has. A device that is in only one result has empty cells for the other."""
    rows = []
    for figure in figures:
        before, after = (_value(one, figure.path) for one in (baseline, other))
        if (before is None and after is None) or (figure.if_any and not before and not after):
            continue
        cells = [
            "" if one is None else NOT_AVAILABLE if number is None else figure.text(number)
            for one, number in ((baseline, before), (other, after))
        ]
        ratio = f"{after / before:.3f}" if before and after and figure.has_ratio else ""
        rows.append((figure.name, cells[0], cells[1], ratio))
    return rows


def _value(record: Any, path: str) -> float | None:
    for name in path.split("."):
        record = getattr(record, name, None)
    value: float | None = record
    return value
