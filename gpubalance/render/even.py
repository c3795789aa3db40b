"""Texts about the even split, for wherever a split is compared with it."""

from __future__ import annotations

from gpubalance.numbers.ratio import ratio
from gpubalance.numbers.units import format_rate
from gpubalance.results.run import Baselines
from gpubalance.settings.shares import Shares


def other_batch(global_batch: int, even_batch: int) -> str:
    """` with a global batch of 1290, not 1584`, as a larger one alone is faster. Empty if both are the same."""
    return "" if even_batch == global_batch else f" with a global batch of {even_batch}, not {global_batch}"


def largest_even_text(split: Shares, rate: float, multiple: int = 1) -> str:
    """What Keras does if the even split needs micro-batches: equal shares with their own global batch.

    A run finds the largest that fit, a plan knows only multiples of its probe's.
    """
    which = f" and in multiples of {multiple}" if multiple > 1 else ""
    rates = f"{format_rate(rate)} samples/s"
    return f"equal shares in one piece{which}, {split}, a global batch of {split.global_batch}: {rates}"


def measured_at_largest_even(against: Baselines) -> str:
    """How the best split of the largest equal shares' global batch compared with them; empty if unknown."""
    even, best = against.largest_even, against.best_at_largest_even
    if even is None or best is None:
        return ""
    value = best.throughput.median / even.throughput.median
    interval = ratio(value, best.step_time_s.samples, even.step_time_s.samples).ci95
    known = f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    return f"at a global batch of {best.global_batch}: {best.split} gave {value:.3f} × {even.split}{known}"
