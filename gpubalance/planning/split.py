"""Splits of a global batch over devices."""

from __future__ import annotations

from collections.abc import Sequence


def even_split(global_batch: int, replicas: int) -> tuple[int, ...]:
    """Equal shares that sum to the global batch; the first devices take one sample more where it does not divide.

    That is what MirroredStrategy does. Raises ValueError when there are fewer samples than replicas.
    """
    if not 0 < replicas <= global_batch:
        raise ValueError(f"{global_batch} samples can't be shared among {replicas} devices")
    share, rest = divmod(global_batch, replicas)
    return tuple(share + (i < rest) for i in range(replicas))


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


def fitting_even_split(global_batch: int, limits: Sequence[int]) -> tuple[int, ...] | None:
    """The even split; where that does not fit, the largest equal shares that do. None where no sample each fits."""
    if not 0 < len(limits) <= global_batch or min(limits) < 1:
        return None
    even = even_split(global_batch, len(limits))
    fits = all(batch <= limit for batch, limit in zip(even, limits, strict=True))
    return even if fits else (min(even[-1], *limits),) * len(limits)


def split_text(batches: Sequence[int], micro_batches: Sequence[int] | None = None) -> str:
    """`1640/568`, and ` in micro-batches 820/568` where any batch is accumulated."""
    text = "/".join(map(str, batches))
    if micro_batches is None or tuple(micro_batches) == tuple(batches):
        return text
    return f"{text} in micro-batches {'/'.join(map(str, micro_batches))}"
