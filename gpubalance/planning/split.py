"""Shares out a global batch of any size in the proportions of a split."""

from __future__ import annotations

from collections.abc import Sequence


def proportional_split(samples: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Shares of `samples` in proportion to the weights, by largest remainders; of equals the first gets more.

    Every device with a weight gets at least one sample if there are enough: an empty share is no replica.
    """
    total = sum(weights)
    least = [1 if weight and samples >= sum(w > 0 for w in weights) else 0 for weight in weights]
    shares = [max(low, samples * weight // total) for low, weight in zip(least, weights, strict=True)]
    order = sorted(range(len(weights)), key=lambda i: (-(samples * weights[i] % total), i))
    for device in order[: max(0, samples - sum(shares))]:
        shares[device] += 1
    while sum(shares) > samples:  # a least share had to come from the largest
        shares[max(range(len(shares)), key=lambda i: shares[i])] -= 1
    return tuple(shares)
