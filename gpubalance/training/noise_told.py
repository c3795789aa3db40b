"""Says in a sentence what a noise scale means for the global batch in training."""

from __future__ import annotations

from gpubalance.numbers.units import format_percent, three_digits
from gpubalance.planning.noise import NoiseScale, efficiency, goodput, learning_rate_factor
from gpubalance.results.plan import Plan
from gpubalance.settings.shares import Shares

# The least part by which another split must reach the same loss sooner to be named.
_CLEARLY = 0.01


def noise_text(found: NoiseScale, split: Shares, plan: Plan | None) -> str:
    """`noise scale 3200 (2700 to 3900): …`; with a plan also the split that would learn faster, by its predictions."""
    if found.value is None or found.ci95 is None:
        return f"noise scale not known: {found.unknown}"
    low, high = map(three_digits, found.ci95)
    total = split.global_batch
    text = (
        f"noise scale {three_digits(found.value)} ({low} to {high}): at a global batch of {total} each sample is worth "
        f"{format_percent(efficiency(total, found.value))}"
    )
    return f"{text}{_better(found.value, split, plan)}"


def _better(scale: float, split: Shares, plan: Plan | None) -> str:
    """The split that would learn faster, as the end of a sentence; empty if the split is not the plan's own."""
    if plan is None or not plan.predicted.by_global_batch or plan.split.of_used != split:
        return ""
    value = goodput(scale)
    best = max(plan.predicted.by_global_batch, key=lambda one: value(one.split.global_batch, one.step_time_s))
    total = best.split.global_batch
    sooner = value(total, best.step_time_s) / value(split.global_batch, plan.predicted.step_time_s)
    if sooner < 1 + _CLEARLY:
        return "; no other global batch would reach the same loss clearly sooner"
    factor = learning_rate_factor(split.global_batch, total, scale)
    return f"; {best.split} would reach the same loss {sooner:.2f} × sooner; learning rate × {factor:.2f} with SGD"
