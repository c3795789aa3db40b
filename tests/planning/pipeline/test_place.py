"""What is placed fits, and takes the shortest step there is.

Branches are side by side where that is faster.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpubalance.planning.pipeline.place import (
    NoPlacementError,
    _branched,
    _chained,
    place,
    placings_of,
)
from gpubalance.planning.pipeline.problem import (
    Block,
    BlockLoad,
    Cut,
    CutProblem,
    Edge,
    Graph,
    Segment,
)
from tests.planning.pipeline.brute import shortest
from tests.planning.pipeline.problems import chain_graph, drawn
from tests.support.cases import cases
from tests.support.known import known

# A stem, two arms of two blocks each and a merge, in depth-first order.
NAMES = ("stem", "a1", "a2", "b1", "b2", "merge")
TARGETS = ((1, 3), (2,), (5,), (4,), (5,))
BRANCHES = Graph(
    tuple(Block(name, 1, 0, 0, 1 / 6) for name in NAMES),
    tuple(Edge(source, targets, 1) for source, targets in enumerate(TARGETS)),
)


def branches(micro_batches: int, memory: float = math.inf) -> CutProblem:
    """A problem of two arms that take 20 ms forward and 40 ms backward on either of two devices."""
    forward = (0.001, 0.01, 0.01, 0.01, 0.01, 0.001)
    backward = tuple(2 * seconds for seconds in forward)
    load = BlockLoad(forward, backward, (0.0,) * 6, (1.0,) * 6, (1.0,) * 6, memory)
    return CutProblem(BRANCHES, (load, load), 1, micro_batches)


def test_the_arms_of_two_branches_are_on_two_devices() -> None:
    placed = place(branches(1))
    device_of: list[int] = []
    for segment in sorted(placed.segments, key=lambda segment: segment.first):
        device_of += [segment.device] * (segment.last - segment.first + 1)
    assert device_of[1:5] in ([0, 0, 1, 1], [1, 1, 0, 0])
    assert len(placed.segments) > 2  # a device has several segments
    # stem, one arm, merge; 126 ms on one device
    assert placed.step_time_s == pytest.approx(0.066)
    # With many micro-batches a chain does as well.
    assert place(branches(32)).step_time_s <= 1.001 * (shortest(branches(32)) or 0.0)


def test_three_branches_are_on_three_devices() -> None:
    """30 ms of each branch are side by side, between 3 ms of the stem and of the merge."""
    graph = Graph(
        tuple(Block(name, 1, 0, 0, 1 / 5) for name in ("stem", *"abc", "merge")),
        tuple(
            Edge(source, to, 1) for source, to in enumerate(((1, 2, 3), *[(4,)] * 3))
        ),
    )
    forward = (0.001, 0.01, 0.01, 0.01, 0.001)
    backward = tuple(2 * seconds for seconds in forward)
    load = BlockLoad(forward, backward, (0.0,) * 5, (1.0,) * 5, (1.0,) * 5)
    problem = CutProblem(graph, (load,) * 3, 1, 1)
    assert len(_branched(problem)) == 24  # of 24 x 9
    placed = place(problem)
    assert {segment.device for segment in placed.segments} == {0, 1, 2}
    assert sum(len(range(*one.blocks.indices(5))) for one in placed.segments) == 5
    assert placed.step_time_s == pytest.approx(0.036)


def test_what_is_placed_fits_and_no_simulated_cut_takes_a_shorter_step() -> None:
    """What is placed fits and no cut that is simulated takes a shorter step."""
    placed_count = 0
    for seed in range(200):
        problem = drawn(seed, most_devices=3)
        shortest_s = shortest(problem)
        try:
            placed = place(problem)
        except NoPlacementError:
            assert shortest_s is None, seed
            continue
        placed_count += 1
        for load, peak in zip(problem.loads, placed.peak_bytes, strict=True):
            assert peak <= load.memory_bytes
        assert placed.step_time_s <= 1.001 * known(shortest_s), seed
    assert 60 < placed_count < 190


def test_chains_are_simulated_for_a_few_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight orders for each of four chains; with little time of one chain after each look."""
    for passes, simulated in ((1 << 20, 32), (2 * 24 * 4, 16)):
        monkeypatch.setattr("gpubalance.planning.pipeline.place._MOST_PASSES", passes)
        assert len(_chained(drawn(17))) == simulated


def test_memory_decides_how_deep_an_order_may_be() -> None:
    """If the first device holds 3 micro-batches, transfers make the deeper order worth it.

    There are two blocks of 1 s each.
    """
    load = BlockLoad((1.0, 1.0), (2.0, 2.0), (0.0, 0.0), (1.0, 1.0), (1.0, 1.0), 10.0)
    problem = CutProblem(chain_graph(2, 1), (load, load), 1, 8, latency_s=0.3)
    tight = replace(problem, loads=(replace(load, memory_bytes=3.5),) * 2)
    for one, depth in ((problem, 3), (tight, 2)):
        placed = place(one)
        assert placed.in_flight[placed.segments[0].device] == depth


@cases("fixed, block", ((1.0, 1.0, 9.0, 1.0, 1.0, 1.0), 2), ((1.0,) * 6, None))
def test_a_block_too_large_is_named(
    fixed: tuple[float, ...], block: int | None
) -> None:
    problem = branches(4, memory=4.0)
    loads = tuple(replace(load, fixed_bytes=fixed) for load in problem.loads)
    with pytest.raises(NoPlacementError) as caught:
        place(replace(problem, loads=loads))
    assert caught.value.block == block


def test_a_skip_connection_is_sent_to_where_it_is_taken() -> None:
    """What the first device gives to the third does not pass through the second.

    The three devices are in a chain.
    """
    edges = (Edge(0, (1,), 5), Edge(1, (2,), 5), Edge(0, (1, 2), 7))
    graph = replace(chain_graph(3, 1), edges=edges)
    load = BlockLoad((1.0,) * 3, (1.0,) * 3, (0.0,) * 3, (0.0,) * 3, (0.0,) * 3)
    problem = CutProblem(graph, (load,) * 3, 1, 4)
    (placed, *_) = placings_of(Cut(problem, tuple(Segment(n, n, n) for n in range(3))))
    assert placed.links == ((0, 1, 12), (0, 2, 7), (1, 2, 5))
