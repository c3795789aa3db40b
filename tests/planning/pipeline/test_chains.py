"""Cuts in a row: each is whole, fits, and no order of its tasks beats its bound."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpubalance.planning.pipeline.chains import chains
from gpubalance.planning.pipeline.place import placings_of
from gpubalance.planning.pipeline.problem import BlockLoad, Cut
from tests.planning.pipeline.problems import drawn, even_problem
from tests.support.cases import cases


@pytest.mark.parametrize("maximum", [20, 10**6])
def test_no_step_of_a_chain_is_shorter_than_its_bound(maximum: int) -> None:
    steps = 0
    for seed in range(12):
        problem = drawn(seed)
        found = chains(problem, math.inf, maximum)
        for chain in found:
            segments = chain.segments
            firsts = [0, *(segment.last + 1 for segment in segments[:-1])]
            assert [segment.first for segment in segments] == firsts
            assert segments[-1].last == len(problem.graph.blocks) - 1
            assert len({s.device for s in segments}) == len(segments) > 1
        # From the least bound to the largest
        for chain in found[:: len(found) // 25 + 1]:
            for placed in placings_of(Cut(problem, chain.segments)):
                assert placed.step_time_s >= chain.min_s * (1 - 1e-9), seed
                steps += 1
    assert steps > 150


@cases(
    "micro_batches, transfer_s, behind_s, bound_s",
    (4, 1.0, 3.0, 3 + 2 + 12),  # a first pass and its transfers, and all behind it
    (6, 2.0, 3.0, 18 + 5 + 3),  # the first stage's passes, and waits at both ends
    (2, 1.5, 0.3, 6 + 2.3),  # or the longer of both
    (8, 2.9, 2.5, 3 * 11.3 + 1),  # three times there and back, and a forward more
    (4, 10.0, 3.0, 3 + 5 * 10 + 3),  # transfers, one after another
)
def test_a_bound_of_two_stages_by_hand(
    micro_batches: int, transfer_s: float, behind_s: float, bound_s: float
) -> None:
    """The first stage takes a second forward and two backward."""
    passes_s = (1.0, behind_s / 3), (2.0, behind_s / 1.5)
    load = BlockLoad(*passes_s, (0.0,) * 2, (1.0,) * 2, (1.0,) * 2)
    problem = even_problem(2, micro_batches, transfer_s)
    found = chains(replace(problem, loads=(load, load)), math.inf, 100)
    assert [chain.min_s for chain in found] == [pytest.approx(bound_s)] * 2


def test_only_chains_that_may_be_shorter_are_looked_at() -> None:
    for seed in range(100):
        problem = drawn(seed)
        found = chains(problem, math.inf, 10**6)
        below_s = found[len(found) // 2].min_s if found else 1.0
        shorter = [chain for chain in found if chain.min_s < below_s]
        assert chains(problem, below_s, 10**6) == shorter


def test_no_more_tails_than_asked_for_are_looked_at() -> None:
    for seed in range(20):
        problem = drawn(seed)
        assert len(chains(problem, math.inf, 2)) <= 2 * (len(problem.loads) - 1)


def test_few_tails_find_a_chain_wherever_there_is_one() -> None:
    for seed in range(200):
        problem = drawn(seed)
        few = len(problem.loads) * 2 ** len(problem.loads) * len(problem.graph.blocks)
        some = chains(problem, math.inf, few)
        assert bool(some) == bool(chains(problem, math.inf, 10**6))
