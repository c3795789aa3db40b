"""A model cut over devices as text: a line for each round and window, and the summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from gpubalance.numbers.units import format_percent, format_rate, format_seconds
from gpubalance.render.fields import device_grid
from gpubalance.render.rates import rate_text
from gpubalance.render.table import BLANK, CUT_SHORT, Grid, Part
from gpubalance.render.timeline import timeline_lines
from gpubalance.results.layers import Layers, LayersRound, Stage
from gpubalance.settings.device import Device
from gpubalance.settings.shares import count_text, run_text


def cut_done_text(tried: LayersRound, devices: Sequence[Device], global_batch: int) -> str:
    """`round 1: GPU:0 blocks 0–8, GPU:1 9–17: step 661 ms, predicted 642 ms, 775 samples/s`."""
    stages = ", ".join(f"{devices[device].label} {run_text(first, last)}" for first, last, device in tried.segments)
    began = f"round {tried.number}: blocks {stages}"
    predicted = _predicted_text(tried.predicted_s, tried.predicted_ci95)
    if tried.step_time_s is None:
        where = "a device" if tried.ran_out is None else devices[tried.ran_out].label
        return f"{began}: {where} ran out of memory and gets less ({predicted})"
    rate = format_rate(global_batch / tried.step_time_s)
    return f"{began}: step {format_seconds(tried.step_time_s)}, {predicted}; {rate} samples/s"


def pipe_window_text(number: int, of: int, throughput: float, step_time_s: float) -> str:
    """`window 1 of 3: 775 samples/s, step 661 ms`."""
    return f"window {number} of {of}: {format_rate(throughput)} samples/s, step {format_seconds(step_time_s)}"


def layers_told(result: Layers) -> Iterator[Part]:
    """The answer, each stage and where its time goes, one step as a picture, and what it is compared with."""
    yield from _answer(result)
    yield BLANK
    yield _stages(result)
    names = [result.blocks[first].name for first, _, _ in result.segments[1:]]
    yield f"cut before {', '.join(names)}; {len(result.blocks)} blocks"
    yield BLANK
    yield partial(timeline_lines, result)
    yield BLANK
    yield from _baselines(result)
    yield "" if result.complete else CUT_SHORT


def _answer(result: Layers) -> Iterator[str]:
    """What the cut gives, what a step consists of, and how far it is from the possible best."""
    yield f"{len(result.stages)} stages: {rate_text(result.throughput)}, model {result.settings.model}"
    if result.forced:
        yield f"cut because of --force: uncut it gives {format_rate(_uncut(result))} samples/s"
    predicted = _predicted_text(result.predicted.step_time_s, result.predicted.ci95)
    yield (
        f"{count_text(result.micro_batches, result.micro_batch)} a step, 1f1b: "
        f"{format_seconds(result.step_time_s.median)}, {predicted}"
    )
    yield (
        f"bubble {format_percent(result.bubble, 1)} of a step; for equal stages without transfers it is "
        f"{format_percent(result.bubble_bound, 1)}"
    )


def _predicted_text(step_time_s: float, ci95: tuple[float, float] | None) -> str:
    """`predicted 607 ms ± 0.4 %`."""
    known = f" ± {format_percent(ci95[1] / step_time_s - 1, 1)}" if ci95 else ""
    return f"predicted {format_seconds(step_time_s)}{known}"


def _uncut(result: Layers) -> float:
    """The most that the whole model gives, on one device or split."""
    held = result.baselines
    return max(one.throughput for one in (held.solo_best, held.split) if one is not None)


def _baselines(result: Layers) -> Iterator[str]:
    """The best single device and the batch split, or why there is none."""
    held = result.baselines
    if held.solo_best is not None:
        label, rate = result.devices[held.solo_best.device].label, format_rate(held.solo_best.throughput)
        yield f"one device alone: {label} gives {rate} samples/s at batch {held.solo_best.batch}"
    else:
        yield f"one device alone: {held.solo_best_why_not}"
    if held.split is not None:
        how = "measured" if held.split.measured else "predicted"
        yield f"the batch split {held.split.split}: {format_rate(held.split.throughput)} samples/s, {how}"
    else:
        yield f"the batch split: {held.split_why_not}"


def _stages(result: Layers) -> Grid:
    """A row for each device: the parts of a step, the most micro-batches that it holds, and its memory."""
    return device_grid(result.devices, result.stages, {"blocks": blocks_text})


def times_of(stage: Stage) -> tuple[float, ...]:
    """The parts of a step, which add up to it."""
    return stage.forward_s, stage.backward_s, stage.transfer_s, stage.update_s, stage.bubble_s


def blocks_text(stage: Stage) -> str:
    """`0–8`, or `0–3 9–12` for two segments."""
    return " ".join(run_text(first, last) for first, last in stage.segments)
