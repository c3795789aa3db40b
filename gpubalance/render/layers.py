"""A model cut over devices as text: rounds, windows, the summary, and one step as a picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

from rich.cells import cell_len

from gpubalance.numbers.units import format_percent, format_seconds
from gpubalance.render.rates import per_s, rate_text, slowed_text
from gpubalance.render.table import (
    BLANK,
    CUT_SHORT,
    Paragraph,
    aligned,
    device_table,
    prose,
)
from gpubalance.results.layers import Layers, LayersRound, Span, Stage
from gpubalance.settings.batch_split import count_text, run_text
from gpubalance.settings.device import Device
from gpubalance.settings.measuring import window_place

# Passes of odd micro-batches are small letters, so that readers can tell them apart.
_SIGNS = {"forward": "Ff", "backward": "Bb", "update": "U", "transfer": "-"}
_NOTHING = "."
_LEAST_COLUMNS = 20
_MUCH = 0.1  # of a step


def cut_done_text(
    tried: LayersRound, devices: Sequence[Device], global_batch: int
) -> str:
    """`round 1: GPU:0 blocks 0–8, GPU:1 9–17: step 661 ms, predicted 642 ms, 775 samples/s`."""
    stages = segments_text(tried, [device.label for device in devices])
    head = f"round {tried.number}: blocks {stages}"
    predicted = _predicted_text(tried.predicted_s, tried.predicted_ci95)
    if tried.step_time_s is None:
        where = "a device" if tried.ran_out is None else devices[tried.ran_out].label
        return f"{head}: {where} ran out of memory and gets fewer blocks ({predicted})"
    rate = per_s(global_batch / tried.step_time_s)
    return f"{head}: step {format_seconds(tried.step_time_s)}, {predicted}; {rate}"


def segments_text(tried: LayersRound, labels: Sequence[str]) -> str:
    """`GPU:0 0–8, GPU:1 9–17`."""
    texts = [
        f"{labels[device]} {run_text(first, last)}"
        for first, last, device in tried.segments
    ]
    return ", ".join(texts)


def pipe_window_text(
    number: int, of: int, throughput: float, step_time_s: float
) -> str:
    """`window 1 of 3: 775 samples/s, step 661 ms`."""
    return f"{window_place(number, of)}: {per_s(throughput)}, step {format_seconds(step_time_s)}"


def layers_summary(result: Layers) -> Iterator[Paragraph]:
    """The answer, each stage and where its time goes, one step as a picture, and the baselines."""
    yield from _answer(result)
    yield BLANK
    yield device_table(result.devices, result.stages, {"blocks": blocks_text})
    names = [result.blocks[first].name for first, *_ in result.segments[1:]]
    yield f"cut before {', '.join(names)}; {len(result.blocks)} blocks of layers"
    yield from _idle(result)
    yield BLANK
    yield partial(timeline_lines, result)
    yield BLANK
    yield from _baselines(result)
    if not result.complete:
        yield CUT_SHORT


def _answer(result: Layers) -> Iterator[str]:
    """What the cut gives, what a step consists of, and how far it is from the possible best."""
    rate = rate_text(result.throughput)
    model = f"model {result.settings.model}{slowed_text(result.settings)}"
    yield f"{len(result.stages)} stages: {rate}, {model}"
    if result.forced:
        yield f"cut because of --force: uncut it gives {per_s(result.baselines.throughput)}"
    samples = count_text(result.micro_batches, result.micro_batch)
    measured = format_seconds(result.step_time_s.median)
    predicted = _predicted_text(result.predicted.step_time_s, result.predicted.ci95)
    yield (
        f"{samples} a step, forward and backward alternating (1F1B): {measured}, "
        f"{predicted}"
    )
    bubble = format_percent(result.bubble, 1)
    bound = format_percent(result.bubble_bound, 1)
    yield (
        f"bubble (idle time) {bubble} of a step; at best {bound}, for equal stages "
        "without transfers"
    )


def _predicted_text(step_time_s: float, ci95: tuple[float, float] | None) -> str:
    """`predicted 607 ms ± 0.4 %`."""
    text = f"predicted {format_seconds(step_time_s)}"
    if ci95:
        text += f" ± {format_percent(ci95[1] / step_time_s - 1, 1)}"
    return text


def _idle(result: Layers) -> Iterator[str]:
    """Why a device has much less to do than the others, beyond what any pipeline costs."""
    slowest = max(result.stages, key=lambda stage: stage.busy_s)
    why = "no other cut that fits is predicted to be faster"
    if result.cuts:
        why = "--cuts determines the cuts"
    for stage in result.stages:
        idle = (stage.bubble_s + stage.transfer_s) / result.step_time_s.median
        if stage is not slowest and idle > result.bubble_bound + _MUCH:
            idles = (
                f"{result.label(stage.device)} idles {format_percent(idle)} of a step"
            )
            waits = f"it waits for {result.label(slowest.device)}, whose stage takes longest"
            yield f"{idles}: {waits}; {why}"


def _baselines(result: Layers) -> Iterator[str]:
    """The best single device and the batch split, or why there is none."""
    baselines = result.baselines
    alone = baselines.solo_best_why_not
    best = baselines.solo_best
    if best is not None:
        alone = f"{result.label(best.device)} gives {per_s(best.throughput)} at batch {best.batch}"
    yield f"one device alone: {alone}"
    split = baselines.split
    if split is None:
        yield f"the batch split: {baselines.split_why_not}"
    else:
        how = "measured" if split.measured else "predicted"
        yield f"the batch split {split.split}: {per_s(split.throughput)}, {how}"


def blocks_text(stage: Stage) -> str:
    """`0–8`, or `0–3 9–12` for two segments."""
    return " ".join(run_text(first, last) for first, last in stage.segments)


def timeline_lines(result: Layers, width: int) -> list[str]:
    """`GPU:0 FfFfBbBb…` for each device; each column shows what takes most of its time."""
    labels = {stage.device: result.label(stage.device) for stage in result.stages}
    left = max(map(cell_len, labels.values())) + 2
    columns = max(_LEAST_COLUMNS, width - left)
    step_s = result.timeline.step_time_s
    signs = "F forward, B backward, U update, - transfer, . bubble"
    lines = prose(f"a step of {format_seconds(step_s)}: {signs}", width)
    for device, label in labels.items():
        row = _timeline_row(result.timeline.spans(device), step_s / columns, columns)
        lines.append(aligned(label, left) + row)
    return lines


def _timeline_row(spans: Iterator[Span], column_s: float, columns: int) -> str:
    """For each column the sign that covers most of it."""
    covered = [defaultdict[str, float](float) for _ in range(columns)]
    for kind, start_s, end_s, number in spans:
        sign = _SIGNS[kind][(number or 0) % len(_SIGNS[kind])]
        for column in range(
            int(start_s / column_s), min(columns, int(end_s / column_s) + 1)
        ):
            column_end_s = min(end_s, (column + 1) * column_s)
            covered[column][sign] += column_end_s - max(start_s, column * column_s)
    row = ""
    for seconds in covered:
        seconds[_NOTHING] = column_s - sum(seconds.values())
        row += max(seconds, key=seconds.__getitem__)
    return row
