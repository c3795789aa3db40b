"""Student's t, held against SciPy's."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import t

from gpubalance.numbers.stats import t95


def true_t95(freedom: float) -> float:
    return float(t.ppf(0.975, freedom))


@given(st.floats(0, 1))
@example(0.0)
@example(1.0)
def test_between_whole_degrees_it_is_on_the_line(part: float) -> None:
    for below in range(1, 19):
        line = (1 - part) * true_t95(below) + part * true_t95(below + 1)
        assert t95(below + part) == pytest.approx(line, abs=6e-4)


@given(st.floats(1, 1e6))
def test_no_interval_is_too_narrow(freedom: float) -> None:
    assert t95(freedom) >= true_t95(freedom) - 6e-4
    assert t95(max(19.0, freedom)) == t95(19)
