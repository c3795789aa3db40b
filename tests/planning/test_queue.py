"""The tail rule: when a free device starts the next of many commands."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.queue import Outlook
from tests.planning.queues import Drawn, makespan_s

_TIMES = st.floats(0.1, 10.0)


def _by_brute_force(free_s: list[float], each_s: list[float], left: int) -> float:
    """The end of the last command, of all ways to share equal commands out."""
    last_ends = []
    for way in product(range(left + 1), repeat=len(each_s)):
        ends = [f + n * e for f, n, e in zip(free_s, way, each_s, strict=True) if n]
        if sum(way) == left:
            last_ends.append(max(ends))
    return min(last_ends)


@given(
    st.lists(st.tuples(st.floats(0, 9), _TIMES), min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_equal_commands_end_early(
    devices: list[tuple[float, float]], left: int
) -> None:
    free_s, each_s = map(list, zip(*devices, strict=True))
    last_s = _by_brute_force(free_s, each_s, left)
    found = Outlook(free_s, each_s)
    assert found.last_s(left) == pytest.approx(last_s)
    assert found.rest_s(left) == pytest.approx(max(last_s, *free_s))


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
    last_s = _by_brute_force([0.0] * len(each_s), each_s, left)
    assert max(busy_s) == pytest.approx(last_s)


def test_a_known_slow_card_is_left_idle_and_an_unknown_one_is_tried() -> None:
    """A known slow card is left idle from the start and an unknown one is tried."""
    for rates, seconds in (((1.0, 0.4), 8.0), (None, 10.0)):
        queue = Drawn((4.0, 4.0), (1.0, 0.4), rates)
        assert makespan_s(queue) == pytest.approx(seconds)
