"""How large a batch fits: a search over "try this batch", pure, with no process, clock or TensorFlow in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def predict_limit(points: Sequence[tuple[int, int]], memory_bytes: int) -> int | None:
    """The largest batch that a line through two or more (batch, bytes) points puts within the memory.

    The slope is that between the two largest batches: small ones hide it behind workspaces. None where it does not
    rise.
    """
    (small, low), (large, high) = sorted(points)[-2:]
    if large == small or high <= low:
        return None
    # Integers throughout: exact where the memory is exactly linear.
    return small + (memory_bytes - low) * (large - small) // (high - low)


def largest_that_fits(
    fits: Callable[[int], bool], *, low: int, high: int, guess: int | None = None, tolerance: float = 0.0
) -> int:
    """The largest batch b in [low, high) for which `fits(b)`, given that `low` fits and `high` does not.

    Tries the guess first, and then just above it or just below: a right guess takes two tries. Then bisects until the
    ends are neighbours, or within `tolerance` of each other. Assumes that what fits, fits when smaller.
    """
    tries = [] if guess is None else [guess, guess + 1]
    while high - low > max(1, tolerance * low):
        batch = tries.pop(0) if tries else (low + high) // 2
        if not low < batch < high:
            continue
        if fits(batch):
            low = batch
        else:
            high = batch
    return low
