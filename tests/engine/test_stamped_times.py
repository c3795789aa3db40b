"""From stamps to times: what each replica computes and updates, and how long a step is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

parts = st.floats(0.0, 10.0)
replicas = st.lists(
    st.tuples(st.floats(0, 1e5), parts, parts, parts), min_size=1, max_size=5
)


def stamped(of_replicas: list[tuple[float, float, float, float]]) -> Any:
    """The stamps of replicas that each begin at a time of their own."""
    return np.array([np.cumsum(of_replica) for of_replica in of_replicas])


@given(replicas)
def test_a_step_is_as_long_as_that_of_the_replica_that_takes_longest(
    of_replicas: list[tuple[float, float, float, float]],
) -> None:
    """It is not from the first begin to the last end: each begins once its own update is over."""
    from gpubalance.engine.step.points import stamped_times

    times = stamped_times(stamped(of_replicas))
    longest_s = max(sum(spent) for _, *spent in of_replicas)
    assert times["step_s"] == pytest.approx(longest_s, abs=1e-8)
    for number, (_, compute_s, _, update_s) in enumerate(of_replicas):
        assert times["compute_s"][number] == pytest.approx(compute_s, abs=1e-8)
        assert times["update_s"][number] == pytest.approx(update_s, abs=1e-8)


def test_stamps_that_were_swapped_give_no_time_below_the_least() -> None:
    from gpubalance.engine.step.points import stamped_times

    times = stamped_times(np.array([[5.0, 4.0, 4.0, 3.0], [5.0, 5.0, 6.0, 5.0]]))
    assert times == {"compute_s": (1e-9, 1e-9), "update_s": (0.0, 0.0), "step_s": 1e-9}
