"""A step takes as long as its order allows, and each device's parts add up to it.

A bound says what is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.pipeline.place import Placement, place, placings_of
from gpubalance.planning.pipeline.problem import (
    BlockLoad,
    Cut,
    CutProblem,
    Segment,
    Task,
    bubble_bound,
    least_bubble,
    pipeline_throughput,
)
from gpubalance.planning.pipeline.schedule import DeadlockError, inputs_of, simulate
from gpubalance.results.layers import StepTimeline
from tests.planning.pipeline.problems import chain_graph, drawn, even_problem
from tests.support.cases import cases

TIMES = ("forward_s", "backward_s", "update_s")


def one_block_each(problem: CutProblem) -> list[Placement]:
    """A segment for each device, in each order of tasks: the plain one first, the deepest last."""
    segments = tuple(Segment(n, n, n) for n in range(len(problem.loads)))
    return list(placings_of(Cut(problem, segments)))


def random_placings(seed: int) -> list[Placement]:
    """Random placings of blocks, so that devices have several segments."""
    problem = drawn(seed)
    segments = []
    for block in range(len(problem.graph.blocks)):
        device = (seed // 7 + block * 5 + block * block) % len(problem.loads)
        segments.append(Segment(block, block, device))
    return list(placings_of(Cut(problem, tuple(segments))))


def busy_s(placed: Placement, device: int, kind: str = "") -> float:
    """How long a device does something, or something of this kind."""
    spans = [span for span in recorded(placed).spans(device) if kind in span.kind]
    return sum(span.end_s - span.start_s for span in spans)


def recorded(placed: Placement) -> StepTimeline:
    """The step as a result has it."""
    return StepTimeline.model_validate(placed.timeline, from_attributes=True)


@cases("stages, micro_batches", (1, 4), (2, 8), (4, 3), (3, 16))
def test_alike_stages_reach_the_bubble_s_bound(stages: int, micro_batches: int) -> None:
    (placed, *_) = one_block_each(even_problem(stages, micro_batches))
    assert placed.step_time_s == pytest.approx((micro_batches + stages - 1) * 3)
    bubble = pytest.approx(bubble_bound(stages, micro_batches))
    for device in range(stages):
        assert 1 - busy_s(placed, device) / placed.step_time_s == bubble
        assert placed.in_flight[device] == min(stages - device, micro_batches)


@cases("stages, loses", (2, 0.09), pytest.param(4, 0.15, marks=pytest.mark.full))
def test_a_deeper_order_hides_transfers(stages: int, loses: float) -> None:
    """Transfers take 10 % of a stage's compute."""
    plain, *_, deeper = one_block_each(even_problem(stages, 16, transfer_s=0.3))
    without = one_block_each(even_problem(stages, 16))[0].step_time_s
    assert plain.step_time_s / without - 1 == pytest.approx(loses, abs=0.03)
    assert deeper.step_time_s / without - 1 < 0.035
    placed = place(even_problem(stages, 16, transfer_s=0.3))
    assert placed.step_time_s <= 1.001 * deeper.step_time_s
    assert sum(plain.in_flight) < sum(placed.in_flight) <= sum(deeper.in_flight)
    # Where nothing is gained, less is held.
    assert place(even_problem(stages, 16)).in_flight == plain.in_flight


@given(st.integers(0, 10**6), st.floats(0.01, 100))
def test_each_step_obeys_its_order_and_adds_up(seed: int, factor: float) -> None:
    for placed in random_placings(seed):
        problem = placed.problem
        ran = {timed.task: timed for timed in placed.timeline.tasks}
        assert len(ran) == 2 * problem.micro_batches * len(placed.segments)
        for order in placed.orders:
            for before, after in pairwise(order):
                assert ran[before].end_s <= ran[after].start_s
        for task, timed in ran.items():
            ended_s = [ran[given].end_s for given in inputs_of(task, placed.links)]
            assert timed.sent_s == max(ended_s, default=0.0)
            assert timed.sent_s <= timed.ready_s <= timed.start_s
        step_s = simulate(placed, placed.orders).step_time_s
        assert step_s == pytest.approx(placed.step_time_s)
        for device, load in enumerate(problem.loads):
            for one, other in pairwise(recorded(placed).spans(device)):
                assert one.end_s <= other.start_s
            own = [one.blocks for one in placed.segments if one.device == device]
            work_s = sum(sum(load.forward_s[blocks]) for blocks in own)
            forward_s = busy_s(placed, device, "forward")
            assert forward_s == pytest.approx(problem.micro_batches * work_s)
        loads = []
        for load in problem.loads:
            times: Any = {}
            for name in TIMES:
                times[name] = tuple(factor * one for one in getattr(load, name))
            loads.append(replace(load, **times))
        link: Any = {"latency_s": factor * problem.latency_s}
        link["bytes_per_s"] = problem.bytes_per_s and problem.bytes_per_s / factor
        longer = replace(problem, loads=tuple(loads), **link)
        found = simulate(Cut(longer, placed.segments), placed.orders)
        assert found.step_time_s == pytest.approx(factor * placed.step_time_s)


def test_an_order_in_which_each_waits_for_the_other_is_found_out() -> None:
    (placed, *_) = one_block_each(even_problem(2, 2))
    orders: list[list[Task]] = [[], []]
    for number in (0, 1):
        for kind in ("forward", "backward"):
            orders[0].append(Task(0, kind, number))
            orders[1].append(Task(1, kind, 1 - number))
    with pytest.raises(DeadlockError):
        simulate(placed, orders)


def test_what_an_order_holds_by_hand() -> None:
    """The first stage has two micro-batches in flight, of a byte each, and a byte of weights."""
    (placed, *_) = one_block_each(even_problem(2, 2))
    held = [placed.held(order) for order in placed.orders]
    assert held == [(3.0, 2), (2.0, 1)]
    kinds: Any = ("forward", "backward", "forward", "forward")
    late = [Task(0, kind, place // 2) for place, kind in enumerate(kinds)]
    assert placed.held(late) == (3.0, 2)


def test_two_transfers_over_one_line_take_turns() -> None:
    """The second micro-batch arrives 5 s after the first, not 1 s.

    Each transfer takes 5 s, a forward 1 s.
    """
    (placed, *_) = one_block_each(even_problem(2, 2))
    slow = Cut(replace(placed.problem, latency_s=5.0), placed.segments)
    found = simulate(slow, placed.orders).tasks
    ready = {t.micro_batch: t.ready_s for t in found if t[:2] == (1, "forward")}
    assert ready == {0: 6.0, 1: 11.0}


def in_a_row(
    rates: Sequence[float], parts: Sequence[float], forward: float, count: int
) -> list[Placement]:
    """Placements of a model's parts on devices of these rates, a micro-batch of a sample."""
    loads = []
    for rate in rates:
        whole_s = [part / sum(parts) / rate for part in parts]
        forward_s = tuple(forward * one for one in whole_s)
        backward_s = tuple((1 - forward) * one for one in whole_s)
        nothing = (0.0,) * len(parts)
        loads.append(BlockLoad(forward_s, backward_s, nothing, nothing, nothing))
    return one_block_each(CutProblem(chain_graph(len(parts)), tuple(loads), 1, count))


# The rate of each one's device, and its part of the model
STAGES = st.lists(st.tuples(*[st.floats(0.1, 10)] * 2), min_size=1, max_size=4)


@given(STAGES, st.floats(0, 1), st.integers(1, 24))
def test_no_stages_in_a_row_give_more_than_the_bound(
    drawn: list[tuple[float, float]], forward: float, count: int
) -> None:
    rates, parts = zip(*drawn, strict=True)
    for placed in in_a_row(rates, parts, forward, count):
        assert placed.problem.graph.is_row
        busy = sum(busy_s(placed, device) for device in range(len(rates)))
        idle = 1 - busy / len(rates) / placed.step_time_s
        assert placed.throughput <= pipeline_throughput(rates, count) * (1 + 1e-9)
        assert idle >= least_bubble(len(rates), count) - 1e-9


def test_unlike_stages_give_more_than_equal_ones() -> None:
    """So the bound of equal stages is none for them."""
    equal = in_a_row([100, 100], [1, 1], 1 / 3, 4)
    unlike = in_a_row([100, 100], [1, 0.8], 1 / 3, 4)
    assert max(one.throughput for one in equal) == pytest.approx(160)
    assert max(one.throughput for one in unlike) == pytest.approx(4 * 180 / 4.2)
    assert pipeline_throughput([100, 100], 4) == pytest.approx(175)
    assert least_bubble(2, 4) == pytest.approx(1 / 8)
    # The fastest device is the first one, wherever it is given.
    assert pipeline_throughput([40, 80], 2) == pipeline_throughput([80, 40], 2) == 100
    assert least_bubble(1, 8) == bubble_bound(1, 8) == 0
    assert bubble_bound(2, 8) == pytest.approx(1 / 9)
