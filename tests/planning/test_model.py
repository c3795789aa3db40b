"""Step-time models: a line where it is one, the monotone curve where not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.allocate import allocate, as_measured
from gpubalance.planning.fleet import Fleet
from gpubalance.planning.model import fit_line, measured_curve, monotone_curve
from gpubalance.planning.problem import Load, Problem


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
    measured = {batch // multiple for batch, _ in points}
    granules = sorted({1, 2, largest // multiple, *measured} - {0})
    times = [curve.step_time_s(count * multiple) for count in granules]
    assert times[0] > 0
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(times))
    solved = [solver.piece_s(np.array([float(count)]))[0] for count in granules]
    assert times == pytest.approx(solved)


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
