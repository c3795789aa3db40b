"""Whether layers give more than the batch split."""

from __future__ import annotations

import pytest

from gpubalance.planning.pipeline.bound import bubble_bound, pipeline_throughput, split_throughput

# The published pair's step times: alpha and beta of either card (shared/facts.md).
CARDS = ((0.04898, 0.00069634), (0.0212, 0.00107))


def rate(card: tuple[float, float], batch: int) -> float:
    return batch / (card[0] + card[1] * batch)


def test_the_published_pair_is_for_the_split_unless_its_sync_is_slow() -> None:
    """Two stages in proportion to the cards, 16 micro-batches of 128, beside the split at 820/568 in one piece."""
    layers = pipeline_throughput([rate(card, 128) for card in CARDS], [1.0, 1.0], 16)
    batches = (820, 568)
    computes = [card[0] + card[1] * batch for card, batch in zip(CARDS, batches, strict=True)]

    def split(sync_s: float) -> float:
        return split_throughput([rate(c, b) for c, b in zip(CARDS, batches, strict=True)], max(computes), sync_s, 1)

    assert layers < split(0.05)
    assert layers > split(0.5)


def test_uneven_stages_give_less() -> None:
    assert pipeline_throughput([100, 100], [1.0, 1.0], 15) == pytest.approx(200 * 15 / 16)
    assert pipeline_throughput([100, 100], [1.0, 0.5], 15) == pytest.approx(150 * 15 / 16)


def test_one_stage_has_no_bubble() -> None:
    assert bubble_bound(1, 8) == 0
    assert bubble_bound(2, 8) == pytest.approx(1 / 9)
