"""The figures of two results side by side, with their ratio."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from gpubalance.numbers.units import NOT_AVAILABLE, format_bytes, format_percent, format_rate, format_seconds
from gpubalance.render.table import shorten, shorten_front, table
from gpubalance.results.comparison import Against, ComparedDevice, ComparedResult, DeviceRatio
from gpubalance.settings.shares import pieces_text

_NARROW = 60  # below this width there is no room for the ratio
_NO_RATIO = ("sync", "imbalance", "× even split", "of solo sum", "wait")  # ratios themselves, or near 0
_HEAD_WIDTH, _NARROW_HEAD_WIDTH = 20, 11


Shown = TypeVar("Shown", ComparedResult, ComparedDevice)


class _Row(NamedTuple):
    name: str
    baseline: str
    other: str
    ratio: str = ""


def column_heads(baseline: str, other: str, width: int) -> tuple[str, str]:
    """The files' names, cut to a column's width, and different for different files."""
    room = _NARROW_HEAD_WIDTH if width < _NARROW else _HEAD_WIDTH
    for cut in (shorten_front, shorten):
        heads = cut(baseline, room), cut(other, room)
        if baseline == other or heads[0] != heads[1]:
            return heads
    return "baseline", "other"


def figures(
    baseline: ComparedResult, other: ComparedResult, against: Against, heads: tuple[str, str], width: int
) -> list[str]:
    """A table: the split's figures, then each device's under its name, without rows that neither result has."""
    sections = [("", _of_the_split(baseline, other))]
    for one in against.devices:
        before = None if one.baseline is None else baseline.devices[one.baseline]
        after = None if one.other is None else other.devices[one.other]
        sections.append((shorten(_title(before, after), width), [*_of_a_device(before, after), *_of_points(one)]))
    rows = [_Row("", *heads, "ratio"), *(row for _, rows in sections for row in rows)]
    columns = 3 if width < _NARROW else 4
    head, *lines = table([row[:columns] for row in rows])
    shown, rest = [head], iter(lines)
    for title, rows in sections:
        shown += [*([title] if title else []), *(next(rest) for _ in rows)]
    return shown


def _title(before: ComparedDevice | None, after: ComparedDevice | None) -> str:
    named = [f"{device.label} {device.name}" for device in (before, after) if device is not None]
    return " → ".join(dict.fromkeys(named))


def _of_the_split(baseline: ComparedResult, other: ComparedResult) -> list[_Row]:
    columns: list[tuple[str, Callable[[ComparedResult], float | None], Callable[[float], str]]] = [
        ("global batch", lambda r: sum(r.batches) if r.batches else None, str),
        ("samples/s", lambda r: r.throughput.median if r.throughput else None, format_rate),
        ("step", lambda r: r.step_time_s, format_seconds),
        ("sync", lambda r: r.sync_s, format_seconds),
        ("imbalance", lambda r: r.imbalance, "{:.3f}".format),
        ("× even split", lambda r: r.speedup_over_even, "{:.3f}".format),
        ("of solo sum", lambda r: r.scaling_efficiency, lambda x: format_percent(x, 1)),
    ]
    return _rows(columns, baseline, other)


def _of_a_device(before: ComparedDevice | None, after: ComparedDevice | None) -> list[_Row]:
    columns: list[tuple[str, Callable[[ComparedDevice], float | None], Callable[[float], str]]] = [
        ("  samples/s", lambda d: d.throughput, format_rate),
        ("  compute", lambda d: d.compute_s, format_seconds),
        ("  wait", lambda d: d.wait_s, format_seconds),
        ("  memory", lambda d: d.memory_peak_bytes, lambda x: format_bytes(int(x))),
        ("  limit", lambda d: d.limit, str),
        ("  best", lambda d: d.solo_best.throughput if d.solo_best else None, format_rate),
        ("  best batch", lambda d: d.solo_best.batch if d.solo_best else None, str),
        ("  α", lambda d: d.alpha_s, format_seconds),
        ("  β", lambda d: d.beta_s, format_seconds),
    ]
    batches = [_batch(device) for device in (before, after)]
    first = [_Row("  batch", *batches)] if any(batches) else []
    return [*first, *_rows(columns, before, after)]


def _batch(device: ComparedDevice | None) -> str:
    """`820`, or `2×820` in micro-batches; nothing of a probe's device or of none."""
    if device is None or device.batch is None:
        return ""
    return pieces_text(device.batch, device.micro_batch or device.batch)


def _of_points(one: DeviceRatio) -> Iterator[_Row]:
    """Samples per second at each batch size that both curves have."""
    for point in one.points:
        ratio, interval = f"{point.ratio.value:.3f}", point.ratio.ci95
        if interval is not None:
            ratio += f" ± {format_percent((interval[1] - interval[0]) / 2 / point.ratio.value, 1)}"
        yield _Row(f"  at {point.batch}", format_rate(point.baseline), format_rate(point.other), ratio)


def _rows(
    columns: Sequence[tuple[str, Callable[[Shown], float | None], Callable[[float], str]]],
    baseline: Shown | None,
    other: Shown | None,
) -> list[_Row]:
    """One row for each figure that either has. A device that is only in one result has empty cells in the other."""
    rows = []
    for name, value, text in columns:
        found = [None if one is None else value(one) for one in (baseline, other)]
        if found == [None, None]:
            continue
        cells = [
            "" if one is None else NOT_AVAILABLE if number is None else text(number)
            for one, number in zip((baseline, other), found, strict=True)
        ]
        before, after = found
        ratio = f"{after / before:.3f}" if before and after and name.strip() not in _NO_RATIO else ""
        rows.append(_Row(name, cells[0], cells[1], ratio))
    return rows
