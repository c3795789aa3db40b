"""The tail rule: when a free device starts the next of many commands."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.queue import Outlook, outlook, relative_times
from tests.planning.queues import Drawn, makespan_s

_TIMES = st.floats(0.1, 10.0)


def _by_brute_force(free_s: list[float], each_s: list[float], left: int) -> float:
    """The end of the last command, of all ways to share equal commands out."""
    ways = [
        way for way in product(range(left + 1), repeat=len(each_s)) if sum(way) == left
    ]
    last_ends = []
    for way in ways:
        ends = [f + n * e for f, n, e in zip(free_s, way, each_s, strict=True) if n]
        last_ends.append(max(ends, default=0.0))
    return min(last_ends)


@given(st.lists(_TIMES, min_size=1, max_size=3), st.integers(1, 8))
def test_following_the_rule_reaches_it_if_equal(each_s: list[float], left: int) -> None:
    busy_s = [0.0] * len(each_s)
    rest = left
    now_s = 0.0
    while rest:
        free = [device for device, end_s in enumerate(busy_s) if end_s <= now_s + 1e-9]
        seen = Outlook([max(0.0, end_s - now_s) for end_s in busy_s], each_s)
        device = seen.starts(free, rest)
        if device is None:
            now_s = min(end_s for end_s in busy_s if end_s > now_s + 1e-9)
        else:
            busy_s[device], rest = now_s + each_s[device], rest - 1
    assert max(busy_s) == pytest.approx(
        _by_brute_force([0.0] * len(each_s), each_s, left)
    )


@given(st.lists(_TIMES, min_size=1, max_size=4), st.integers(1, 20))
def test_where_all_are_free_one_starts(each_s: list[float], left: int) -> None:
    assert (
        Outlook([0.0] * len(each_s), each_s).starts(range(len(each_s)), left)
        is not None
    )


def test_the_issues_example_takes_the_optimum() -> None:
    queue = Drawn((4.0,) * 5, (1.0, 0.4))
    assert makespan_s(queue, pull=True) == pytest.approx(20.0)
    assert makespan_s(queue) == pytest.approx(16.0)


def test_a_known_slow_card_is_left_idle_and_an_unknown_one_is_tried() -> None:
    """A known slow card is left idle from the start and an unknown one is tried."""
    assert makespan_s(Drawn((4.0, 4.0), (1.0, 0.4), rates=(1.0, 0.4))) == pytest.approx(
        8.0
    )
    assert makespan_s(Drawn((4.0, 4.0), (1.0, 0.4))) == pytest.approx(10.0)


@given(
    st.lists(st.lists(_TIMES, max_size=3), min_size=1, max_size=3),
    st.floats(0.1, 100.0),
)
def test_units_of_time_do_not_matter(ended: list[list[float]], factor: float) -> None:
    running = [0.5 if each else None for each in ended]
    scaled = []
    for times_s in ended:
        scaled.append([factor * time_s for time_s in times_s])
    one = outlook(ended, running, relative_times(ended))
    other = outlook(scaled, [s and factor * s for s in running], relative_times(scaled))
    free = [device for device, since in enumerate(running) if since is None]
    assert one.starts(free, 3) == other.starts(free, 3)
