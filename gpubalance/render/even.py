"""What is said of the even split wherever a split is held against it."""

from __future__ import annotations

from gpubalance.numbers.units import format_rate
from gpubalance.settings.shares import Shares


def other_batch(global_batch: int, even_batch: int) -> str:
    """` with a global batch of 1290, not 1584`: a larger one alone is faster. Empty where both are the same."""
    return "" if even_batch == global_batch else f" with a global batch of {even_batch}, not {global_batch}"


def largest_even_text(split: Shares, rate: float) -> str:
    """What Keras does where the even split needs micro-batches, with its own global batch."""
    return f"equal shares in one piece, {split}, a global batch of {split.global_batch}: {format_rate(rate)} samples/s"
