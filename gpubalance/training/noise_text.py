"""What training says of the gradient noise scale at its end."""

from __future__ import annotations

from gpubalance.numbers.units import format_percent, three_digits
from gpubalance.planning.noise import (
    NoiseScale,
    efficiency,
    goodput,
    learning_rate_factor,
)
from gpubalance.results.plan import Plan
from gpubalance.settings.batch_split import BatchSplit

# The least part by which another split must reach the same loss sooner to be named.
_CLEARLY = 0.01


def noise_text(noise: NoiseScale, split: BatchSplit, plan: Plan | None) -> str:
    """`noise scale 3200 (2700 to 3900): …`, with a plan also of a split that would learn faster."""
    if noise.value is None or noise.ci95 is None:
        return f"noise scale not known: {noise.unknown}"
    low, high = map(three_digits, noise.ci95)
    batch = split.global_batch
    worth = format_percent(efficiency(batch, noise.value))
    text = (
        f"noise scale {three_digits(noise.value)} ({low} to {high}): at a global batch of {batch} "
        f"each sample is worth {worth}"
    )
    if (
        plan is None
        or not plan.predicted.by_global_batch
        or plan.split.without_idle != split
    ):
        return text
    return f"{text}; {_better(noise.value, plan)}"


def _better(scale: float, plan: Plan) -> str:
    """The split that would learn faster than the plan's, by its predictions."""
    value = goodput(scale)
    now = plan.split.global_batch
    best = max(
        plan.predicted.by_global_batch,
        key=lambda row: value(row.split.global_batch, row.step_time_s),
    )
    batch = best.split.global_batch
    sooner = value(batch, best.step_time_s) / value(now, plan.predicted.step_time_s)
    if sooner < 1 + _CLEARLY:
        return "no other global batch would reach the same loss clearly sooner"
    factor = learning_rate_factor(now, batch, scale)
    return (
        f"{best.split} would reach the same loss {sooner:.2f} × sooner; learning rate × "
        f"{factor:.2f} with SGD"
    )
