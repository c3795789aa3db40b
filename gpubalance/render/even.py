"""What is said of the even split wherever a split is held against it."""

from __future__ import annotations


def other_batch(global_batch: int, even_batch: int) -> str:
    """` with a global batch of 1290, not 1584`: a larger one alone is faster. Empty where both are the same."""
    return "" if even_batch == global_batch else f" with a global batch of {even_batch}, not {global_batch}"
