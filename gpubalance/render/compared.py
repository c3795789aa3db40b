"""Two results' figures side by side, with their ratio."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gpubalance.render.table import shorten, shorten_front, table
from gpubalance.results.comparison import Against, ComparedDevice, ComparedResult, DeviceRatio, ThroughputRatio
from gpubalance.units import NOT_AVAILABLE, format_bytes, format_percent, format_rate, format_seconds

MOST_WIDTH = 80
_NARROW = 60  # under this there is no room for the ratio
_NO_RATIO = ("sync", "imbalance", "× even split", "of solo sum", "wait")  # ratios themselves, or near 0
_HEAD_WIDTH, _NARROW_HEAD_WIDTH = 20, 11


class _Row(NamedTuple):
    name: str
    baseline: str
    other: str
    ratio: str = ""


def column_heads(baseline: str, other: str, width: int) -> tuple[str, str]:
    """The files' names, no wider than a column, and not the same for two files."""
    room = _NARROW_HEAD_WIDTH if width < _NARROW else _HEAD_WIDTH
    for cut in (shorten_front, shorten):
        heads = cut(baseline, room), cut(other, room)
        if baseline == other or heads[0] != heads[1]:
            return heads
    return "baseline", "other"


def figures(
    baseline: ComparedResult, other: ComparedResult, against: Against, heads: tuple[str, str], width: int
) -> list[str]:
    """A table: the split's figures, then each device's under its name. Rows that neither has are left out."""
    sections = [("", _of_the_split(baseline, other, against.ratio))]
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


def _of_the_split(baseline: ComparedResult, other: ComparedResult, ratio: ThroughputRatio | None) -> list[_Row]:
    rates = [result.throughput and result.throughput.median for result in (baseline, other)]
    batches = [sum(result.batches) if result.batches else None for result in (baseline, other)]
    rows = [
        _row("global batch", *batches, str),
        _row("samples/s", *rates, format_rate, ratio.value if ratio else None),
        _row("step", baseline.step_time_s, other.step_time_s, format_seconds),
        _row("sync", baseline.sync_s, other.sync_s, format_seconds),
        _row("imbalance", baseline.imbalance, other.imbalance, "{:.3f}".format),
        _row("× even split", baseline.speedup_over_even, other.speedup_over_even, "{:.3f}".format),
        _row("of solo sum", baseline.scaling_efficiency, other.scaling_efficiency, lambda x: format_percent(x, 1)),
    ]
    return [row for row in rows if row]


def _of_a_device(before: ComparedDevice | None, after: ComparedDevice | None) -> list[_Row]:
    def both(name: str, value: Callable[[ComparedDevice], float | None], text: Callable[[float], str]) -> _Row | None:
        return _row(f"  {name}", before and value(before), after and value(after), text)

    pair = [_batch(device) if device else None for device in (before, after)]
    rows = [
        _Row("  batch", *(text or "" for text in pair)) if any(pair) else None,
        both("samples/s", lambda d: d.throughput, format_rate),
        both("compute", lambda d: d.compute_s, format_seconds),
        both("wait", lambda d: d.wait_s, format_seconds),
        both("memory", lambda d: d.memory_peak_bytes, lambda x: format_bytes(int(x))),
        both("limit", lambda d: d.limit, str),
        both("best", lambda d: d.solo_best and d.solo_best.throughput, format_rate),
        both("best batch", lambda d: d.solo_best and d.solo_best.batch, str),
        both("α", lambda d: d.alpha_s, format_seconds),
        both("β", lambda d: d.beta_s, format_seconds),
    ]
    return [row for row in rows if row]


def _batch(device: ComparedDevice) -> str | None:
    if device.batch is None or device.micro_batch in (None, 0, device.batch):
        return None if device.batch is None else str(device.batch)
    return f"{device.batch // device.micro_batch}×{device.micro_batch}"


def _of_points(one: DeviceRatio) -> Iterator[_Row]:
    """Samples per second at each batch size that both curves have."""
    for point in one.points:
        ratio, interval = f"{point.ratio.value:.3f}", point.ratio.ci95
        if interval is not None:
            ratio += f" ± {format_percent((interval[1] - interval[0]) / 2 / point.ratio.value, 1)}"
        yield _Row(f"  at {point.batch}", format_rate(point.baseline), format_rate(point.other), ratio)


def _row(
    name: str,
    baseline: float | None,
    other: float | None,
    text: Callable[[float], str],
    ratio: float | None = None,
) -> _Row | None:
    """None where neither has it."""
    if baseline is None and other is None:
        return None
    if ratio is None and baseline and other and name.strip() not in _NO_RATIO:
        ratio = other / baseline
    cells: Sequence[str] = [NOT_AVAILABLE if x is None else text(x) for x in (baseline, other)]
    return _Row(name, *cells, "" if ratio is None else f"{ratio:.3f}")
