"""What a pipeline can give at best, and whether that is more than the batch split where each device holds the model."""

from __future__ import annotations

from collections.abc import Sequence


def bubble_bound(stages: int, micro_batches: int) -> float:
    """(S−1)/(K+S−1): the part of a step in which a stage has nothing to do, where all are alike and nothing is sent."""
    return (stages - 1) / (micro_batches + stages - 1)


def evenness(stage_s: Sequence[float]) -> float:
    """The mean over the largest of the stages' times of a micro-batch; 1 is perfect."""
    return sum(stage_s) / len(stage_s) / max(stage_s)


def pipeline_throughput(rates: Sequence[float], stage_s: Sequence[float], micro_batches: int) -> float:
    """K/(K+S−1) · c · Σ rᵢ(m) samples/s, with `rates` each device's alone at the micro-batch m and c the evenness."""
    return (1 - bubble_bound(len(stage_s), micro_batches)) * evenness(stage_s) * sum(rates)


def split_throughput(rates: Sequence[float], compute_s: float, sync_s: float, pieces: int) -> float:
    """Σ rᵢ(bᵢ) · T/(T + s/k) samples/s, with T seconds of compute a piece, and one sync of s for each k pieces.

    `rates` are each device's alone at its batch bᵢ.
    """
    return sum(rates) * compute_s / (compute_s + sync_s / pieces)
