"""Step-time models: a line where it is one, the monotone curve where not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.allocate import allocate, as_measured
from gpubalance.planning.fleet import Fleet
from gpubalance.planning.model import (
    fit_line,
    measured_curve,
    monotone_curve,
    slower_batches,
)
from gpubalance.planning.problem import Load, Problem

batches = st.lists(st.integers(1, 10**5), min_size=2, max_size=12, unique=True)


@given(batches, st.floats(0, 1), st.floats(1e-6, 1e-2))
def test_an_exact_line_is_found(sizes: list[int], alpha: float, beta: float) -> None:
    line = fit_line([(b, alpha + beta * b) for b in sizes])
    for b in sizes:
        assert line.step_time_s(b) == pytest.approx(alpha + beta * b, rel=1e-6)
    assert line.residual < 1e-6


@given(
    st.lists(
        st.tuples(st.integers(1, 10**5), st.floats(1e-4, 10)),
        min_size=2,
        max_size=12,
        unique_by=lambda p: p[0],
    )
)
def test_no_line_near_it_is_better(points: list[tuple[int, float]]) -> None:
    def error(alpha: float, beta: float) -> float:
        return sum(((alpha + beta * b - t) / t) ** 2 for b, t in points)

    line = fit_line(points)
    assert line.alpha_s >= 0
    assert line.beta_s >= 0
    best = error(line.alpha_s, line.beta_s)
    for alpha in (0.99 * line.alpha_s, 1.01 * line.alpha_s + 1e-9):
        for beta in (0.99 * line.beta_s, 1.01 * line.beta_s + 1e-12):
            assert best <= error(alpha, beta) * (1 + 1e-6) + 1e-9


@given(
    st.lists(
        st.tuples(st.integers(1, 10**5), st.floats(1e-4, 10)),
        min_size=1,
        max_size=12,
        unique_by=lambda p: p[0],
    )
)
def test_the_curve_never_falls_and_keeps_what_did_not(
    points: list[tuple[int, float]],
) -> None:
    curve = monotone_curve(points)
    times = [curve.step_time_s(b) for b in curve.batches]
    assert all(b >= a * (1 - 1e-9) for a, b in pairwise(times))
    ordered = [t for _, t in sorted(points)]
    if ordered == sorted(ordered):
        assert times == pytest.approx(ordered)
    assert sum(curve.step_times_s) == pytest.approx(sum(ordered))


def test_between_points_it_is_straight_and_past_them_it_goes_on() -> None:
    curve = monotone_curve([(10, 1.0), (20, 2.0), (40, 3.0)])
    assert [curve.step_time_s(b) for b in (5, 15, 30, 60)] == [0.5, 1.5, 2.5, 4.0]
    assert monotone_curve([(10, 1.0)]).step_time_s(99) == 1.0


def test_one_batch_makes_no_line() -> None:
    with pytest.raises(ValueError, match="two batches"):
        fit_line([(8, 1.0), (8, 1.1)])


@given(
    st.lists(
        st.tuples(st.integers(1, 10**5), st.floats(1e-6, 10)),
        min_size=1,
        max_size=8,
        unique_by=lambda p: p[0],
    ),
    st.sampled_from([1, 8, 30]),
)
def test_outside_the_measured_points_a_step_takes_what_the_solver_takes(
    points: list[tuple[int, float]], multiple: int
) -> None:
    """Below the first point and above the last a step takes time, as much as for the solver."""
    curve = monotone_curve(points)
    largest = 10 * max(batch for batch, _ in points)
    solver = Fleet([Load(curve, largest)], multiple=multiple)
    granules = sorted(
        {1, 2, *(batch // multiple for batch, _ in points), largest // multiple} - {0}
    )
    times = [curve.step_time_s(count * multiple) for count in granules]
    assert times[0] > 0
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(times))
    assert times == pytest.approx(
        [float(solver.piece_s(np.array([float(count)]))[0]) for count in granules]
    )


@given(
    st.lists(
        st.tuples(st.integers(1, 200), st.floats(1e-3, 10), st.floats(0, 0.03)),
        min_size=1,
        max_size=8,
        unique_by=lambda p: p[0],
    )
)
def test_a_batch_that_is_clearly_slower_than_a_larger_one_keeps_its_time(
    points: list[tuple[int, float, float]],
) -> None:
    """A planner takes it for no slower than the larger one, which may be used in its place."""
    curve = measured_curve(points)
    times_s = {batch: time_s for batch, time_s, _ in points}
    for batch, larger in slower_batches(points):
        assert curve.measured_s(batch) == pytest.approx(times_s[batch])
        larger_s = curve.measured_s(larger)  # maybe a mean with others about as fast
        assert curve.step_time_s(batch) <= larger_s * (1 + 1e-9)
        assert larger_s >= times_s[batch] or batch in curve.slower_than_larger


def test_the_faster_larger_batch_is_used_and_a_slower_one_predicted() -> None:
    """The faster larger batch is used and a slower one is predicted as it was measured."""
    falls = Load(measured_curve([(32, 0.05, 0.0), (64, 0.03, 0.0)]), 64)
    free = allocate(Problem((falls,), multiple=32))
    assert free.split.batches == (64,)
    assert free.step_time_s == pytest.approx(0.03)
    other = Load(measured_curve([(32, 0.02, 0.0), (64, 0.04, 0.0)]), 64)
    both = Problem((falls, other), multiple=32, global_batch=96)
    assert allocate(both).split.batches == (64, 32)
    alone = Problem((falls,), multiple=32, global_batch=32)
    assert as_measured(alone, allocate(alone)).step_time_s == pytest.approx(0.05)
