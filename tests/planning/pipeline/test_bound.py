"""Whether layers give more than the batch split."""

from __future__ import annotations

import pytest

from gpubalance.planning.allocate import allocate
from gpubalance.planning.model import Line
from gpubalance.planning.pipeline.bound import bubble_bound, pipeline_throughput
from gpubalance.planning.problem import Load, Problem

# The published pair: its lines (shared/facts.md), and the batches that it holds together.
CARDS = (Line(0.04898, 0.00069634, 0.0), Line(0.0212, 0.00107, 0.0))
LIMITS = (1000, 640)


@pytest.mark.parametrize(("sync_s", "layers_win"), [(0.012, False), (0.05, False), (0.5, True)])
def test_the_published_pair_is_for_the_split_unless_its_sync_is_slow(sync_s: float, layers_win: bool) -> None:
    loads = tuple(Load(card, limit) for card, limit in zip(CARDS, LIMITS, strict=True))
    split = allocate(Problem(loads, sync_s=sync_s)).throughput
    layers = pipeline_throughput([128 / card.step_time_s(128) for card in CARDS], 16)
    assert (layers > split) == layers_win


def test_stages_alike_give_what_they_give_alone_without_the_bubble() -> None:
    assert pipeline_throughput([100, 100], 15) == pytest.approx(200 * 15 / 16)


def test_one_stage_has_no_bubble() -> None:
    assert bubble_bound(1, 8) == 0
    assert bubble_bound(2, 8) == pytest.approx(1 / 9)
