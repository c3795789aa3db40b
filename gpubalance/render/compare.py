"""A comparison as text: the verdicts, the warnings, and then the figures side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

from gpubalance.numbers.units import NOT_AVAILABLE, format_percent, format_rate
from gpubalance.render.columns import Cell, Column, columns_of, named
from gpubalance.render.rates import half_text
from gpubalance.render.table import WIDTH, prose, short, shorten, shorten_front, table
from gpubalance.results.comparison import (
    Against,
    ComparedDevice,
    ComparedResult,
    Comparison,
    DeviceRatio,
    Difference,
    ThroughputRatio,
)
from gpubalance.settings.batch_split import pieces_text
from gpubalance.settings.record import Record, Shown

_NAME_WIDTH = 36
_NARROW = 60  # below this width there is no room for the ratio
_HEAD_WIDTH = 20
_GLOBAL = named("global_batch", Shown(), lambda result: result.global_batch)
# Batches have a row of their own.
_NOT_COMPARED = ("batch", "micro_batch", "complete")


class _Pair(NamedTuple):
    """A result beside the first, both with their names."""

    first: ComparedResult
    other: ComparedResult
    against: Against
    names: tuple[str, str]

    def devices(
        self, ratio: DeviceRatio
    ) -> tuple[ComparedDevice | None, ComparedDevice | None]:
        """The device in each result; None if it is missing there."""
        before = after = None
        if ratio.baseline is not None:
            before = self.first.devices[ratio.baseline]
        if ratio.other is not None:
            after = self.other.devices[ratio.other]
        return before, after


def comparison_text(comparison: Comparison, width: int = WIDTH) -> str:
    """All verdicts first, then a table of figures for each, in lines of 40 to 80 columns."""
    width = max(40, min(WIDTH, width))
    results = comparison.results
    names = file_names([result.file for result in results])
    pairs = []
    for against in comparison.against_first:
        pair_names = names[0], names[against.result]
        pairs.append(_Pair(results[0], results[against.result], against, pair_names))
    # The same file may be given twice.
    warnings = dict.fromkeys(_warnings(results, names))
    blocks = [_wrapped(_verdict(pair), width) for pair in pairs]
    blocks.append(_wrapped(warnings, width))
    blocks += [_figures(pair, width) for pair in pairs]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _wrapped(sentences: Iterable[str], width: int) -> list[str]:
    lines = []
    for sentence in sentences:
        lines += prose(sentence, width)
    return lines


def file_names(files: Sequence[str]) -> list[str]:
    """The files' names, or the differing parts of their paths if the names are the same."""
    paths = [PurePath(file).parts for file in files]
    shown = [parts[-1:] for parts in paths]
    if len(set(shown)) < len(set(paths)):
        while _have_one_end(paths):
            paths = [parts[:-1] for parts in paths]
        shown = paths
    names = []
    for parts in shown:
        name = str(PurePath(*parts)) if parts else ""
        names.append(shorten_front(name, _NAME_WIDTH))
    return names


def _have_one_end(paths: Sequence[tuple[str, ...]]) -> bool:
    """Whether the paths end in the same part, and none of them is that part alone."""
    ends = {parts[-1:] for parts in paths}
    return len(ends) == 1 and all(len(parts) > 1 for parts in paths)


def _verdict(pair: _Pair) -> Iterator[str]:
    """The verdict, preceded by what differs."""
    first, other = pair.names
    against = pair.against
    if against.unlike:
        differences = "; ".join(map(_difference, against.unlike))
        yield f"differences ({first} → {other}): {differences}"
    if against.same_measurement and first == other:
        yield f"no verdict: {first} is given twice"
    elif against.same_measurement:
        yield f"no verdict: {other} is the same measurement as {first}"
    elif against.ratio is not None:
        yield _split_verdict(pair, against.ratio)
    else:
        for device in against.devices:
            yield _device_verdict(pair, device)


def _difference(found: Difference) -> str:
    before = found.baseline or NOT_AVAILABLE
    after = found.other or NOT_AVAILABLE
    return f"{found.what} {before} → {after}"


def _split_verdict(pair: _Pair, ratio: ThroughputRatio) -> str:
    what = f"the samples/s of {pair.names[0]}"
    results = zip(pair.names, (pair.first, pair.other), strict=True)
    predicted = {name: None for name, result in results if result.kind == "prediction"}
    if not predicted:
        return _judged(pair, ratio, what)
    why = f"{' and '.join(predicted)} was never run: its figures are predictions"
    if len(predicted) > 1:
        why = f"{' and '.join(predicted)} were never run: their figures are predictions"
    return f"no verdict, as {why}: {ratio.value:.3f} × {what}"


def _device_verdict(pair: _Pair, device: DeviceRatio) -> str:
    before, after = pair.devices(device)
    label = (after or before or pair.other.devices[0]).label
    if before is None:
        return f"{label} is in {pair.names[1]} only"
    if after is None:
        return f"{label} is in {pair.names[0]} only"
    if device.ratio is None:
        return f"{label}: no verdict, as the two have no batch size in common"
    sizes = "at the one batch size"
    if len(device.points) > 1:
        sizes = f"over the {len(device.points)} batch sizes"
    what = f"the samples/s {sizes} that both have"
    return f"{label}: {_judged(pair, device.ratio, what)}"


def _judged(pair: _Pair, ratio: ThroughputRatio, what: str) -> str:
    """The verdict in words, what makes it doubtful, and the ratio with its interval."""
    first, other = pair.names
    value = f"{ratio.value:.3f} × {what}"
    if ratio.verdict is None or ratio.ci95 is None:
        return f"no verdict on {other}, as there are too few timings: {value}"
    low, high = ratio.ci95
    value += f" ({low:.3f} to {high:.3f}, 95 % interval within these runs)"
    doubt = _doubt(pair)
    if ratio.verdict != "no difference":
        return f"{other} is {ratio.verdict} than {first}{doubt}: {value}"
    unseen = f"a difference under {format_percent(ratio.detectable, 1)} may not show"
    return f"no clear difference between {first} and {other}{doubt}: {value}; {unseen}"


def _doubt(pair: _Pair) -> str:
    doubts = []
    if pair.against.unlike:
        doubts.append("under other conditions")
    unquiet = []
    for name, result in zip(pair.names, (pair.first, pair.other), strict=True):
        if result.not_quiet:
            unquiet.append(f"{name}: {result.not_quiet}")
    if unquiet:
        doubts.append(f"the machine was not quiet ({'; '.join(unquiet)})")
    if not doubts:
        return ""
    return f", but {', and '.join(doubts)}"


def _warnings(results: Sequence[ComparedResult], names: Sequence[str]) -> Iterator[str]:
    """What makes a result doubtful. The command that wrote the result has said what to do."""
    for name, result in zip(names, results, strict=True):
        if not result.complete:
            yield f"{name}: cut short; the figures are of what was measured until then"
        for warning in result.warnings:
            yield f"{name}: warning {warning.code}: {warning.message}"


def _figures(pair: _Pair, width: int) -> list[str]:
    """The split's figures, then each device's under its name, without rows that neither has."""
    rows: list[list[str]] = [["", *_heads(*pair.names), "ratio"]]
    rows += _rows([_GLOBAL, *_compared(ComparedResult)], pair.first, pair.other)
    for ratio in pair.against.devices:
        before, after = pair.devices(ratio)
        titles = [
            f"{device.label} {device.name}" for device in (before, after) if device
        ]
        rows.append([shorten(" → ".join(dict.fromkeys(titles)), width)])
        batches = [_batch(before), _batch(after)]
        if any(batches):
            rows.append(["  batch", *batches, ""])
        rows += _rows(_compared(ComparedDevice), before, after, "  ")
        for point in ratio.points:
            rates = [format_rate(point.baseline), format_rate(point.other)]
            value = point.ratio.value
            text = f"{value:.3f}{half_text(value, point.ratio.ci95)}"
            rows.append([f"  at {point.batch}", *rates, text])
    if width < _NARROW:
        rows = [row[:3] for row in rows]
    return table(rows, width=width)


def _heads(first: str, other: str) -> tuple[str, str]:
    """The files' names, cut to a column's width but different for different files."""
    for cut in (shorten_front, shorten):
        heads = cut(first, _HEAD_WIDTH), cut(other, _HEAD_WIDTH)
        if first == other or heads[0] != heads[1]:
            return heads
    return "baseline", "other"


def _compared(kind: type[Record]) -> list[Column]:
    """The columns that are compared: numbers, but not the ends of intervals."""
    columns = []
    for column in columns_of(kind):
        is_end = column.key.endswith(("_from", "_to"))
        if not column.is_text and not is_end and column.key not in _NOT_COMPARED:
            columns.append(column)
    return columns


def _batch(device: ComparedDevice | None) -> str:
    """`820`, or `2×820` in micro-batches; empty for a probe's device or none."""
    if device is None or device.batch is None:
        return ""
    return pieces_text(device.batch, device.micro_batch or device.batch)


def _rows(
    columns: Sequence[Column],
    first: Record | None,
    other: Record | None,
    indent: str = "",
) -> Iterator[list[str]]:
    """A row for each figure that either has; the cells of a device that is missing are empty."""
    for column in columns:
        before = _value(column, first)
        after = _value(column, other)
        if before is None and after is None:
            continue
        # An update takes part in a step of some devices only.
        if column.key == "update_s" and not before and not after:
            continue
        cells = [f"{indent}{column.label}", "", "", ""]
        if first is not None:
            cells[1] = short(before, column)
        if other is not None:
            cells[2] = short(after, column)
        if column.has_ratio:
            cells[3] = _ratio(before, after)
        yield cells


def _value(column: Column, record: Record | None) -> Cell:
    """The figure of that column; None also of a device that is missing."""
    if record is None:
        return None
    return column.value(record)


def _ratio(before: Cell, after: Cell) -> str:
    """The ratio of two numbers; empty if one is unknown or 0."""
    if isinstance(before, str) or isinstance(after, str) or not before or not after:
        return ""
    return f"{after / before:.3f}"
