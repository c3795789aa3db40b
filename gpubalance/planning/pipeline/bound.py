"""What a pipeline can give at best, and whether that is more than the batch split where each device holds the model."""

from __future__ import annotations

from collections.abc import Sequence


def bubble_bound(stages: int, micro_batches: int) -> float:
    """(S−1)/(K+S−1): the part of a step in which a stage has nothing to do, where all are alike and nothing is sent."""
    return (stages - 1) / (micro_batches + stages - 1)


def pipeline_throughput(rates: Sequence[float], micro_batches: int) -> float:
    """K/(K+S−1) · Σ rᵢ(m) samples/s, with `rates` each device's alone at the micro-batch m, where all stages are alike.

    Unlike ones give less: times the mean over the largest of their times. Layers are faster than the batch split where
    that is above Σ rᵢ(bᵢ) · T/(T + s/k), with T a piece's compute and a sync of s for each k pieces: what a plan
    predicts.
    """
    return (1 - bubble_bound(len(rates), micro_batches)) * sum(rates)
