"""Which batch sizes a curve needs, and what is read off it."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.curve import (
    best_of,
    knee_sizes,
    octaves,
    off_line,
    sensible_of,
    sensible_size,
    wanted_precision,
)


@given(st.integers(1, 64), st.integers(1, 10**6), st.sampled_from([1, 8, 32]))
def test_octaves_double_up_to_the_largest(
    smallest: int, largest: int, multiple: int
) -> None:
    sizes = octaves(smallest, largest, multiple)
    assert sizes == sorted(set(sizes))
    assert all(size % multiple == 0 and size > 0 for size in sizes)
    assert sizes[-1] == max(multiple, largest // multiple * multiple)
    assert all(b <= 2.25 * a for a, b in pairwise(sizes))
    assert all(b >= 1.125 * a for a, b in pairwise(sizes[-2:]) if len(sizes) > 2)


def line_curve(alpha: float, beta: float, sizes: list[int]) -> list[tuple[int, float]]:
    return [(b, b / (alpha + beta * b)) for b in sizes]


def test_the_knee_of_a_line_gets_thirds_of_an_octave_and_its_ends_do_not() -> None:
    points = line_curve(0.05, 0.0007, octaves(8, 8192, 1))
    all_of_them = {size for size, _ in points}
    wanted = knee_sizes(points, 1, all_of_them)
    knee = 0.05 / 0.0007  # where the throughput is half of its limit
    assert any(knee < size < 4 * knee for size in wanted)
    assert not any(size < knee / 4 or size > 32 * knee for size in wanted)
    # Once they are measured, no more are wanted between them.
    again = knee_sizes(
        sorted(points + line_curve(0.05, 0.0007, wanted)), 1, {*all_of_them, *wanted}
    )
    assert again == []
    # Between points that are on a line it says what they are.
    assert knee_sizes(points, 1, ()) == []
    assert {size for size in wanted if 128 < size < 512} == set(
        knee_sizes(points, 1, {256})
    )


@given(st.floats(1e-3, 1), st.floats(1e-5, 1e-2), st.sampled_from([0.004, 0.02]))
def test_a_point_is_off_the_line_by_more_than_its_interval_or_one_percent(
    alpha: float, beta: float, half: float
) -> None:
    """A point is off the line by more than it is known for or one percent."""
    sizes = octaves(8, 1024, 8)
    points = [(size, alpha + beta * size, half) for size in sizes]
    assert off_line(points) == set()
    for factor, off in (
        (1 + 0.6 * max(half, 0.01), False),
        (1 + 4 * max(half, 0.01), True),
    ):
        moved = [(b, time * (factor if b == 128 else 1), half) for b, time, _ in points]
        assert (128 in off_line(moved)) == off
    assert off_line(points[:3]) == set(sizes[:3])


def test_a_step_time_is_wanted_exactly_where_splits_are() -> None:
    assert [wanted_precision(batch, 128) for batch in (8, 64, 72, 128)] == [
        0.03,
        0.03,
        0.01,
        0.01,
    ]


def test_a_straight_curve_wants_nothing_more() -> None:
    sizes = octaves(8, 1024, 8)
    assert knee_sizes([(b, 1000.0) for b in sizes], 8, sizes) == []
    assert knee_sizes([(8, 1.0)], 8, sizes) == []


def test_best_and_sensible() -> None:
    points = [(8, 100.0), (16, 180.0), (32, 196.0), (64, 200.0), (128, 199.0)]
    assert best_of(points) == (64, 200.0)
    assert sensible_of(points) == (32, 196.0)
    # A dip on the way does not count as having got there.
    assert sensible_of([(8, 199.0), (16, 100.0), (32, 200.0)]) == (32, 200.0)


@given(
    st.floats(1e-3, 1),
    st.floats(1e-5, 1e-2),
    st.integers(3, 12),
    st.sampled_from([1, 8]),
)
def test_the_sensible_size_is_found_between_two_that_were_measured(
    alpha: float, beta: float, count: int, multiple: int
) -> None:
    sizes = [multiple * 2**n for n in range(count)]
    points = line_curve(alpha, beta, sizes)
    size = sensible_size(points, multiple)
    coarse = sensible_of(points)[0]
    if size is None:  # nothing lies between, on the grid, that should be within 5 %
        low = points[max(0, sizes.index(coarse) - 1)]
        high = points[sizes.index(coarse)]
        part = math.log(max(1, coarse - multiple) / low[0]) / math.log(2)
        assert coarse == sizes[0] or low[1] + part * (high[1] - low[1]) < 0.95 * points[
            -1
        ][1] * (1 + 1e-9)
        return
    assert coarse // 2 < size < coarse
    assert size % multiple == 0
    # Measured too, it or the coarse one is the smallest within 5 %.
    assert sensible_of([*points, *line_curve(alpha, beta, [size])])[0] in (size, coarse)
