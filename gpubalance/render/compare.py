"""A comparison as text: what differs, the verdict, the warnings, and then the figures
side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

from gpubalance.numbers.units import NOT_AVAILABLE, format_percent, format_rate
from gpubalance.render.fields import Column, columns_of, named, short
from gpubalance.render.rates import half_text
from gpubalance.render.table import WIDTH, prose, shorten, shorten_front, table
from gpubalance.results.comparison import (
    Against,
    ComparedDevice,
    ComparedResult,
    Comparison,
    ThroughputRatio,
    Unlike,
)
from gpubalance.settings.record import Record, Shown
from gpubalance.settings.shares import pieces_text

_NAME_WIDTH = 36
_NARROW = 60  # below this width there is no room for the ratio
_HEAD_WIDTH = 20
_GLOBAL = named("global_batch", Shown(), lambda result: result.global_batch)
_Row = tuple[str, str, str, str]  # its name, both figures and their ratio


class _Pair(NamedTuple):
    """A result beside the first, both with their names."""

    first: ComparedResult
    other: ComparedResult
    against: Against
    names: tuple[str, str]


def comparison_text(comparison: Comparison, width: int = WIDTH) -> str:
    """All verdicts first, then a table of figures for each, in lines of `width`
    columns: 40 to 80.
    """
    width = max(40, min(WIDTH, width))
    first, names = comparison.results[0], file_names([result.file for result in comparison.results])
    pairs = [
        _Pair(first, comparison.results[one.result], one, (names[0], names[one.result]))
        for one in comparison.against_first
    ]
    # The same file may be given twice.
    warnings = dict.fromkeys(_warnings(comparison.results, names))
    blocks = [
        *(_lines(_verdict(pair), width) for pair in pairs),
        _lines(warnings, width),
        *(_figures(pair, width) for pair in pairs),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _lines(sentences: Iterator[str] | dict[str, None], width: int) -> list[str]:
    return [line for sentence in sentences for line in prose(sentence, width)]


def file_names(files: Sequence[str]) -> list[str]:
    """The files' names, or the differing parts of their paths if the names are the same."""
    parts = [PurePath(file).parts for file in files]
    shown = [file[-1:] for file in parts]
    if len(set(shown)) < len(set(parts)):
        while len({file[-1:] for file in parts}) == 1 and all(len(file) > 1 for file in parts):
            parts = [file[:-1] for file in parts]
        shown = parts
    return [shorten_front(str(PurePath(*file)) if file else "", _NAME_WIDTH) for file in shown]


def _verdict(pair: _Pair) -> Iterator[str]:
    """The verdict, preceded by what differs."""
    first, other = pair.names
    if pair.against.unlike:
        yield f"not the same ({first} → {other}): {'; '.join(map(_unlike, pair.against.unlike))}"
    if pair.against.same_measurement:
        both = (
            f"it is {first} twice"
            if first == other
            else f"{other} is the same measurement as {first}"
        )
        yield f"no verdict: {both}"
    elif pair.against.ratio is not None:
        yield _of_split(pair, pair.against.ratio)
    else:
        yield from _of_devices(pair)


def _unlike(one: Unlike) -> str:
    return f"{one.what} {one.baseline or NOT_AVAILABLE} → {one.other or NOT_AVAILABLE}"


def _of_split(pair: _Pair, ratio: ThroughputRatio) -> str:
    of, results = f"the samples/s of {pair.names[0]}", (pair.first, pair.other)
    predicted = dict.fromkeys(
        n for n, one in zip(pair.names, results, strict=True) if one.kind == "prediction"
    )
    if not predicted:
        return _judged(pair, ratio, of)
    were, their = ("were", "their") if len(predicted) > 1 else ("was", "its")
    why = f"{' and '.join(predicted)} {were} never run, {their} figures are predicted"
    return f"no verdict, as {why}: {ratio.value:.3f} × {of}"


def _of_devices(pair: _Pair) -> Iterator[str]:
    for one in pair.against.devices:
        before, after = _devices_of(pair, one.baseline, one.other)
        label = (after or before or pair.other.devices[0]).label
        sizes = f"{len(one.points)} batch size{'s' if len(one.points) > 1 else ''}"
        if before is None or after is None:
            yield f"{label} is in {pair.names[before is None]} only"
        elif one.ratio is None:
            yield f"{label}: no verdict, as the two have no batch size in common"
        else:
            what = f"the samples/s over the {sizes} that both have"
            yield f"{label}: {_judged(pair, one.ratio, what)}"


def _devices_of(
    pair: _Pair, baseline: int | None, other: int | None
) -> tuple[ComparedDevice | None, ComparedDevice | None]:
    before = None if baseline is None else pair.first.devices[baseline]
    return before, None if other is None else pair.other.devices[other]


def _judged(pair: _Pair, ratio: ThroughputRatio, of: str) -> str:
    """The verdict in words, what makes it doubtful, and the ratio with its interval."""
    first, other = pair.names
    value = f"{ratio.value:.3f} × {of}"
    if ratio.verdict is None or ratio.ci95 is None:
        return f"no verdict on {other}, as there are too few timings: {value}"
    value += f" ({ratio.ci95[0]:.3f} to {ratio.ci95[1]:.3f}, 95 % within these runs)"
    doubts = ["not like with like"] if pair.against.unlike else []
    noisy = zip(pair.names, (pair.first.not_quiet, pair.other.not_quiet), strict=True)
    unquiet = "; ".join(f"{name}: {why}" for name, why in noisy if why)
    doubts += [f"the machine was not quiet ({unquiet})"] if unquiet else []
    doubt = f", but {', and '.join(doubts)}" if doubts else ""
    if ratio.verdict != "no difference":
        return f"{other} is {ratio.verdict} than {first}{doubt}: {value}"
    unseen = f"a difference under {format_percent(ratio.detectable, 1)} may not show"
    return f"no clear difference between {first} and {other}{doubt}: {value}; {unseen}"


def _warnings(results: Sequence[ComparedResult], names: Sequence[str]) -> Iterator[str]:
    """What makes a result doubtful, in a line or two each. The command that wrote the result has
    said what to do.
    """
    for name, result in zip(names, results, strict=True):
        if not result.complete:
            yield f"{name}: cut short: the figures are of what was measured until then"
        yield from (f"{name}: warning {one.code}: {one.message}" for one in result.warnings)


def _figures(pair: _Pair, width: int) -> list[str]:
    """A table: the split's figures, then each device's under its name, without rows that are empty
    in both results.
    """
    rows: list[Sequence[str]] = [("", *_heads(*pair.names), "ratio")]
    rows += _rows([_GLOBAL, *_compared(ComparedResult)], pair.first, pair.other)
    for one in pair.against.devices:
        before, after = _devices_of(pair, one.baseline, one.other)
        titles = dict.fromkeys(
            f"{device.label} {device.name}" for device in (before, after) if device
        )
        batches = _batch(before), _batch(after)
        rows.append((shorten(" → ".join(titles), width),))
        rows += [("  batch", *batches, "")] if any(batches) else []
        rows += _rows(_compared(ComparedDevice), before, after, "  ")
        for at in one.points:
            ratio = f"{at.ratio.value:.3f}{half_text(at.ratio.value, at.ratio.ci95)}"
            rows.append(
                (f"  at {at.batch}", format_rate(at.baseline), format_rate(at.other), ratio)
            )
    return table([row[: 3 if width < _NARROW else 4] for row in rows], width=width)


def _heads(first: str, other: str) -> tuple[str, str]:
    """The files' names, cut to a column's width but different for different files."""
    cuts = ((cut(first, _HEAD_WIDTH), cut(other, _HEAD_WIDTH)) for cut in (shorten_front, shorten))
    return next(
        (heads for heads in cuts if first == other or heads[0] != heads[1]), ("baseline", "other")
    )


def _compared(kind: type[Record]) -> list[Column]:
    """The columns that are compared: numbers, but for batches, which have a row of their own, and
    ends of intervals.
    """
    without, ends = ("batch", "micro_batch", "complete"), ("_from", "_to")
    columns = (column for column in columns_of(kind) if not column.is_text)
    return [
        column for column in columns if column.key not in without and not column.key.endswith(ends)
    ]


def _batch(device: ComparedDevice | None) -> str:
    """`820`, or `2×820` in micro-batches; empty for a probe's device or none."""
    if device is None or device.batch is None:
        return ""
    return pieces_text(device.batch, device.micro_batch or device.batch)


def _rows(
    columns: Sequence[Column], first: Record | None, other: Record | None, indent: str = ""
) -> Iterator[_Row]:
    """One row for each figure that either has. A device that is in only one result has empty cells
    for the other.

    An update takes part in a step of some devices only.
    """
    for column in columns:
        before, after = (None if one is None else column.value(one) for one in (first, other))
        if (before is None and after is None) or (
            column.key == "update_s" and not before and not after
        ):
            continue
        both = isinstance(before, int | float) and isinstance(after, int | float)
        ratio = f"{after / before:.3f}" if both and before and after and column.has_ratio else ""  # type: ignore[operator]
        cells = (
            "" if one is None else short(cell, column)
            for one, cell in ((first, before), (other, after))
        )
        yield f"{indent}{column.label}", next(cells), next(cells), ratio
