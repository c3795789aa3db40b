"""A global batch of any size, shared out in the proportion of a split."""

from __future__ import annotations

from collections.abc import Sequence


def proportional_split(samples: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Shares in the proportion of the weights that sum to `samples`, by largest remainders; equal ones to the first.

    A device with a weight gets a sample at least, as long as there are so many: an empty share is not a replica.
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
