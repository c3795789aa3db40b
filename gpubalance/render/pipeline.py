"""The lines that a run says about the user's own input pipeline."""

from __future__ import annotations

import textwrap

from gpubalance.numbers.units import format_percent, format_rate
from gpubalance.render.table import prose
from gpubalance.results.run import Pipeline

_NOTHING_USUAL = "no usual remedy is missing: do less for each sample, or do it once, beforehand"


def pipeline_lines(pipeline: Pipeline, solo_sum: float | None, width: int, *, in_front: bool = False) -> list[str]:
    """If the pipeline binds, that and what usually helps; otherwise its throughput alone.

    If it was `in_front` of the devices in the figures that follow, the split's throughput without it is added.
    """
    alone, held = pipeline.alone, pipeline.held
    known = ""
    if alone.ci95 is not None:
        known = f" ± {format_percent((alone.ci95[1] - alone.ci95[0]) / 2 / alone.median, 1)}"
    rate = f"{format_rate(alone.median)} samples/s{known}"
    use = f"{format_percent(pipeline.processor_use)} of the processors"
    most = max(held.median if held else 0.0, solo_sum or 0.0)
    if not pipeline.binds:
        without = f"; without waiting for it the split gives {format_rate(held.median)}" if in_front and held else ""
        return prose(f"your input pipeline alone gives {rate}, with {use}{without}", width)
    lines = prose(
        f"your input pipeline gives {rate}; these devices could take {format_rate(most)} (it uses {use})", width
    )
    remedies = [f"{one.where}: what usually helps: {one.what}" for one in pipeline.remedies]
    for text in remedies or [_NOTHING_USUAL]:
        lines += textwrap.wrap(text, width, initial_indent="  → ", subsequent_indent="    ")
    return lines
