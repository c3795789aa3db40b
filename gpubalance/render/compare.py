"""A comparison as text: what differs, the verdict, the warnings, and then the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from gpubalance.numbers.units import NOT_AVAILABLE, format_percent
from gpubalance.render.compared import column_heads, figures
from gpubalance.render.table import WIDTH, prose, shorten_front
from gpubalance.results.comparison import Against, ComparedResult, Comparison, ThroughputRatio, Unlike

_NAME_WIDTH = 36


def comparison_text(comparison: Comparison, width: int = WIDTH) -> str:
    """All verdicts first, then a table of figures for each, in lines of `width` columns: 40 to 80."""
    width = max(40, min(WIDTH, width))
    names = file_names([result.file for result in comparison.results])
    lines: list[str] = []
    for against in comparison.against_first:
        lines += [*_verdict(comparison, against, names, width), ""]
    lines += [*_warnings(comparison.results, names, width), ""]
    for against in comparison.against_first:
        first, other = comparison.results[0], comparison.results[against.result]
        heads = column_heads(names[0], names[against.result], width)
        lines += [*figures(first, other, against, heads, width), ""]
    return "\n".join(_single_blanks(lines)).strip("\n")


def _single_blanks(lines: Sequence[str]) -> Iterator[str]:
    for before, line in zip(["", *lines], lines, strict=False):
        if before or line:
            yield line


def file_names(files: Sequence[str]) -> list[str]:
    """The files' names, or the differing parts of their paths if the names are the same."""
    parts = [PurePath(file).parts for file in files]
    if len({file[-1:] for file in parts}) < len(set(parts)):
        while len({file[-1:] for file in parts}) == 1 and all(len(file) > 1 for file in parts):
            parts = [file[:-1] for file in parts]
        return [shorten_front(str(PurePath(*file)), _NAME_WIDTH) for file in parts]
    return [shorten_front(file[-1] if file else "", _NAME_WIDTH) for file in parts]


def _verdict(comparison: Comparison, against: Against, names: Sequence[str], width: int) -> list[str]:
    """The verdict, preceded by what differs."""
    first, other = comparison.results[0], comparison.results[against.result]
    pair = names[0], names[against.result]
    lines = [_unlike(against.unlike, pair)] if against.unlike else []
    if against.same_measurement:
        both = f"it is {pair[0]} twice" if pair[0] == pair[1] else f"{pair[1]} is the same measurement as {pair[0]}"
        lines.append(f"no verdict: {both}")
    elif against.ratio is not None:
        predicted = [n for n, r in zip(pair, (first, other), strict=True) if r.kind == "prediction"]
        lines.append(_split_verdict(against.ratio, pair, predicted, _doubts(first, other, against, pair)))
    else:
        lines += _device_verdicts(first, other, against, pair)
    return [part for line in lines for part in prose(line, width)]


def _unlike(found: Sequence[Unlike], pair: tuple[str, str]) -> str:
    listed = "; ".join(f"{u.what} {u.baseline or NOT_AVAILABLE} → {u.other or NOT_AVAILABLE}" for u in found)
    return f"not the same ({pair[0]} → {pair[1]}): {listed}"


def _doubts(first: ComparedResult, other: ComparedResult, against: Against, pair: tuple[str, str]) -> list[str]:
    """What a reader must know beside a verdict."""
    unquiet = [f"{name}: {r.not_quiet}" for name, r in zip(pair, (first, other), strict=True) if r.not_quiet]
    return [
        *(["not like with like"] if against.unlike else []),
        *([f"the machine was not quiet ({'; '.join(unquiet)})"] if unquiet else []),
    ]


def _split_verdict(
    ratio: ThroughputRatio, pair: tuple[str, str], predicted: Sequence[str], doubts: Sequence[str]
) -> str:
    if predicted:
        which = " and ".join(dict.fromkeys(predicted))
        several = len(set(predicted)) > 1
        why = f"{which} {'were' if several else 'was'} never run, {'their' if several else 'its'} figures are predicted"
        return f"no verdict, as {why}: {ratio.value:.3f} × the samples/s of {pair[0]}"
    return _judged(ratio, pair, f"the samples/s of {pair[0]}", doubts)


def _device_verdicts(
    first: ComparedResult, other: ComparedResult, against: Against, pair: tuple[str, str]
) -> Iterator[str]:
    for one in against.devices:
        if one.other is None and one.baseline is not None:
            yield f"{first.devices[one.baseline].label} is in {pair[0]} only"
        elif one.baseline is None and one.other is not None:
            yield f"{other.devices[one.other].label} is in {pair[1]} only"
        elif one.other is not None:
            label = other.devices[one.other].label
            if one.ratio is None:
                yield f"{label}: no verdict, as the two have no batch size in common"
                continue
            sizes = f"{len(one.points)} batch size{'s' if len(one.points) > 1 else ''}"
            of = f"the samples/s over the {sizes} that both have"
            yield f"{label}: {_judged(one.ratio, pair, of, _doubts(first, other, against, pair))}"


def _judged(ratio: ThroughputRatio, pair: tuple[str, str], of: str, doubts: Sequence[str]) -> str:
    """The verdict in words, what makes it doubtful, and the ratio with its interval."""
    value = f"{ratio.value:.3f} × {of}"
    if ratio.verdict is None or ratio.ci95 is None:
        return f"no verdict on {pair[1]}, as there are too few timings: {value}"
    value += f" ({ratio.ci95[0]:.3f} to {ratio.ci95[1]:.3f}, 95 % within these runs)"
    doubt = f", but {', and '.join(doubts)}" if doubts else ""
    if ratio.verdict == "no difference":
        unseen = format_percent(ratio.detectable, 1)
        return (
            f"no clear difference between {pair[0]} and {pair[1]}{doubt}: {value}; a difference "
            f"under {unseen} may not show"
        )
    return f"{pair[1]} is {ratio.verdict} than {pair[0]}{doubt}: {value}"


def _warnings(results: Sequence[ComparedResult], names: Sequence[str], width: int) -> list[str]:
    """What makes a result doubtful, in a line or two each. The command that wrote the result has said what to do."""
    lines: list[str] = []
    for name, result in zip(names, results, strict=True):
        told = [f"warning {warning.code}: {warning.message}" for warning in result.warnings]
        if not result.complete:
            told.insert(0, "cut short: the figures are of what was measured until then")
        lines += [f"{name}: {text}" for text in told]
    once = dict.fromkeys(lines)  # the same file may be given twice
    return [part for line in once for part in prose(line, width)]
