"""Splits of a global batch over devices."""

from __future__ import annotations


def even_split(global_batch: int, replicas: int) -> tuple[int, ...]:
    """Equal shares that sum to the global batch; the first devices take one sample more where it does not divide.

    That is what MirroredStrategy does. Raises ValueError when there are fewer samples than replicas.
    """
    if not 0 < replicas <= global_batch:
        raise ValueError(f"{global_batch} samples can't be shared among {replicas} devices")
    share, rest = divmod(global_batch, replicas)
    return tuple(share + (i < rest) for i in range(replicas))
