"""A step takes as long as its order allows, and each device's parts add up to it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.pipeline.bound import bubble_bound
from gpubalance.planning.pipeline.parts import parts_of
from gpubalance.planning.pipeline.place import Placement, place, placings_of
from gpubalance.planning.pipeline.problem import Problem
from gpubalance.planning.pipeline.segments import Segment
from gpubalance.planning.pipeline.simulate import Costs, DeadlockError, inputs_of, simulate
from gpubalance.planning.pipeline.timeline import Task
from tests.planning.pipeline.problems import drawn, even_problem


def one_block_each(problem: Problem) -> list[Placement]:
    """A segment for each device, in each order of tasks: the plain one first, the deepest last."""
    return list(placings_of(problem, tuple(Segment(n, n, n) for n in range(len(problem.loads)))))


def random_placings(seed: int) -> list[tuple[Problem, Placement]]:
    """Random placings of blocks, so that devices have several segments."""
    problem = drawn(seed)
    n, devices = len(problem.graph.blocks), len(problem.loads)
    starts = [0, *sorted(problem.graph.cuts), n]
    dealt = tuple(
        Segment(starts[i], starts[i + 1] - 1, (seed // 7 + i * 5 + i * i) % devices) for i in range(len(starts) - 1)
    )
    return [(problem, placed) for placed in placings_of(problem, dealt)]


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (2, 8), (4, 3), (3, 16)])
def test_alike_stages_reach_the_bound_of_the_bubble(stages: int, micro_batches: int) -> None:
    problem = even_problem(stages, micro_batches)
    (placed, *_) = one_block_each(problem)
    assert placed.timeline.step_time_s == pytest.approx((micro_batches + stages - 1) * 3)
    for part in parts_of(placed.timeline, placed.links):
        assert part.bubble_s / placed.timeline.step_time_s == pytest.approx(bubble_bound(stages, micro_batches))
    assert list(placed.in_flight) == [min(stages - s, micro_batches) for s in range(stages)]


@pytest.mark.parametrize(("stages", "loses"), [(2, 0.09), (4, 0.15)])
def test_a_deeper_order_hides_transfers(stages: int, loses: float) -> None:
    """Transfers take 10 % of a stage's compute."""
    plain, *_, deeper = one_block_each(even_problem(stages, 16, transfer_s=0.3))
    without = one_block_each(even_problem(stages, 16))[0].timeline.step_time_s
    assert plain.timeline.step_time_s / without - 1 == pytest.approx(loses, abs=0.03)
    assert deeper.timeline.step_time_s / without - 1 < 0.035
    placed = place(even_problem(stages, 16, transfer_s=0.3))
    assert placed.timeline.step_time_s <= 1.001 * deeper.timeline.step_time_s
    assert sum(plain.in_flight) < sum(placed.in_flight) <= sum(deeper.in_flight)
    assert place(even_problem(stages, 16)).in_flight == plain.in_flight  # where nothing is gained, less is held


@given(st.integers(0, 10**6))
def test_every_step_obeys_its_order(seed: int) -> None:
    for problem, placed in random_placings(seed):
        ran = {timed.task: timed for timed in placed.timeline.tasks}
        assert len(ran) == 2 * problem.micro_batches * len(placed.segments)
        for order in placed.orders:
            for before, after in pairwise(order):
                assert ran[before].end_s <= ran[after].start_s
        for task, timed in ran.items():
            assert all(ran[given].end_s <= timed.ready_s <= timed.start_s for given in inputs_of(task, placed.links))
        costs = problem.costs(placed.segments, placed.links)
        again = simulate(placed.segments, placed.links, placed.orders, costs)
        assert again.step_time_s == pytest.approx(placed.timeline.step_time_s)


@given(st.integers(0, 10**6))
def test_parts_add_up_and_none_is_below_zero(seed: int) -> None:
    for problem, placed in random_placings(seed):
        for part in parts_of(placed.timeline, placed.links):
            parts = (part.forward_s, part.backward_s, part.transfer_s, part.update_s, part.bubble_s)
            assert min(parts) > -1e-9
            assert sum(parts) == pytest.approx(placed.timeline.step_time_s)
            work = sum(
                problem.micro_batches * sum(problem.loads[s.device].forward_s[s.blocks])
                for s in placed.segments
                if s.device == part.device
            )
            assert part.forward_s == pytest.approx(work)


@given(st.integers(0, 10**6), st.floats(0.01, 100))
def test_all_times_longer_make_the_step_as_much_longer(seed: int, factor: float) -> None:
    for problem, placed in random_placings(seed):
        costs = problem.costs(placed.segments, placed.links)
        longer = Costs(*(tuple(factor * seconds for seconds in own) for own in vars(costs).values()))
        found = simulate(placed.segments, placed.links, placed.orders, longer)
        assert found.step_time_s == pytest.approx(factor * placed.timeline.step_time_s)


def test_an_order_in_which_each_waits_for_the_other_is_found_out() -> None:
    (placed, *_) = one_block_each(even_problem(2, 2))
    first = (Task(0, "forward", 0), Task(0, "backward", 0), Task(0, "forward", 1), Task(0, "backward", 1))
    second = (Task(1, "forward", 1), Task(1, "backward", 1), Task(1, "forward", 0), Task(1, "backward", 0))
    costs = Costs((1.0, 1.0), (1.0, 1.0), (0.0,), (0.0, 0.0))
    with pytest.raises(DeadlockError):
        simulate(placed.segments, placed.links, [first, second], costs)


def test_two_transfers_over_one_line_take_turns() -> None:
    """Each takes 5 s, a forward 1 s: the second micro-batch arrives 5 s after the first, not 1 s."""
    costs = Costs((1.0, 1.0), (1.0, 1.0), (5.0,), (0.0, 0.0))
    (placed, *_) = one_block_each(even_problem(2, 2))
    ready = {t.task.micro_batch: t.ready_s for t in simulate(placed.segments, placed.links, placed.orders, costs).tasks
             if t.task.segment == 1 and t.task.kind == "forward"}  # fmt: skip
    assert ready == {0: 6.0, 1: 11.0}
