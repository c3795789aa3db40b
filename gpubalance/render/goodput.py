"""Goodput as text: what a sample of a global batch is worth in learning."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.numbers.units import format_percent, format_rate, three_digits
from gpubalance.planning.noise import efficiency
from gpubalance.render.sparkline import sparkline
from gpubalance.render.table import prose, table
from gpubalance.results.plan import Plan


def maximised_text(plan: Plan) -> str:
    """A hint that only samples/s were maximised; empty if the noise scale is known or the global batch was given."""
    predicted = plan.predicted
    if predicted.noise_scale is not None or not predicted.by_global_batch:
        return ""
    return "only samples/s were maximised; --noise-scale weighs learning too"


def goodput_lines(plan: Plan, width: int) -> Iterator[str]:
    """Each split's goodput, and the course over global batches; nothing if the noise scale is unknown."""
    predicted = plan.predicted
    if predicted.noise_scale is None:
        return
    yield from prose(
        f"by a noise scale of {three_digits(predicted.noise_scale)} samples; goodput is samples/s times what each "
        "sample is worth:",
        width,
    )
    rows = [("", "split", "global batch", "samples/s", "worth", "goodput")]
    for one in predicted.by_goodput:
        split = "/".join(map(str, one.batches))
        worth = format_percent(one.efficiency, 1)
        rows.append(
            (one.of, split, str(one.global_batch), format_rate(one.throughput), worth, format_rate(one.goodput))
        )
    yield from table(rows, left=(0, 1), width=width)
    by_batch = predicted.by_global_batch
    if len(by_batch) > 1:
        totals = [one.split.global_batch for one in by_batch]
        values = [
            one.throughput * efficiency(total, predicted.noise_scale)
            for one, total in zip(by_batch, totals, strict=True)
        ]
        yield from prose(
            f"goodput at global batches of {totals[0]} to {totals[-1]}: {sparkline(values, least=0.0)}", width
        )
