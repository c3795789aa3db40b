"""Step-time models: a line where it is one, the monotone curve where not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.fleet import Fleet
from gpubalance.planning.model import fit_line, monotone_curve
from gpubalance.planning.problem import Load


def test_one_batch_makes_no_line() -> None:
    with pytest.raises(ValueError, match="two batch sizes"):
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
    assert times == [curve.measured_s(count * multiple) for count in granules]
