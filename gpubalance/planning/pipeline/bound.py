"""The best that a pipeline can give, to compare with the batch split in which each device holds the whole model."""

from __future__ import annotations

from collections.abc import Sequence


def bubble_bound(stages: int, micro_batches: int) -> float:
    """(S−1)/(K+S−1): the idle fraction of a step with equal stages, if transfers take no time."""
    return (stages - 1) / (micro_batches + stages - 1)


def pipeline_throughput(rates: Sequence[float], micro_batches: int) -> float:
    """K/(K+S−1) · Σ rᵢ(m) samples/s, with each device's rate alone at the micro-batch m, for stages of equal time.

    Unequal stages give less: multiply by the mean over the largest of their times. A pipeline beats the batch split if
    that is above Σ rᵢ(bᵢ) · T/(T + s/k), with T a piece's compute and one sync of s for every k pieces: what a plan
    predicts.
    """
    return (1 - bubble_bound(len(rates), micro_batches)) * sum(rates)
