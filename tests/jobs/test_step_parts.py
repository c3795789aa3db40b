"""What a step's parts are beside waits for data, and what is said of timings that are much longer than others."""

from __future__ import annotations

import pytest

from gpubalance.jobs.measure.timings import Timings
from gpubalance.jobs.measure.warnings import of_figures
from gpubalance.results.timing import Timing
from gpubalance.settings.shares import Shares

COMPUTE_S, DATA_S = 0.10, 0.13  # data comes every 0.13 s


def timings_of(host_waits_s: float) -> Timings:
    whole = [Timing(steps=5, seconds=5 * DATA_S, input_wait_s=5 * host_waits_s) for _ in range(6)]
    stamps = {"compute_s": (COMPUTE_S,) * 2, "update_s": (0.0,) * 2, "step_s": COMPUTE_S}
    stamped = [Timing(steps=1, seconds=COMPUTE_S, input_wait_s=host_waits_s, **stamps) for _ in range(10)]
    return Timings(Shares((4, 4)), timings=whole, stamped=stamped)


@pytest.mark.parametrize("host_waits_s", [DATA_S - COMPUTE_S, DATA_S], ids=["for the device too", "beside a GPU"])
def test_the_parts_make_up_the_step_whether_or_not_the_host_waits_for_the_device(host_waits_s: float) -> None:
    timings = timings_of(host_waits_s)
    found = timings.measurement()
    assert found.input_wait_s == pytest.approx(DATA_S - COMPUTE_S)
    assert (found.sync_s, found.excess_s) == pytest.approx((0, 0))
    assert timings.stamp_cost == pytest.approx(0)


def test_data_that_seldom_comes_late_is_a_wait_for_input_and_no_sync() -> None:
    """Each fifth step waits, and no stamped one."""
    timings = timings_of(DATA_S - COMPUTE_S)
    timings.stamped = [one.model_copy(update={"input_wait_s": 0.0}) for one in timings.stamped]
    found = timings.measurement()
    assert (found.input_wait_s, found.sync_s, found.slow_s) == pytest.approx((DATA_S - COMPUTE_S, 0, 0))


def test_a_step_whose_data_comes_late_is_a_slow_step() -> None:
    timings = timings_of(DATA_S)
    timings.stamped[3] = timings.stamped[3].model_copy(update={"input_wait_s": 4 * DATA_S})
    assert timings.slow_steps == 1


def test_a_few_much_longer_timings_are_told() -> None:
    timings = timings_of(DATA_S)
    assert timings.mean_over_median == 0
    timings.timings[2] = timings.timings[2].model_copy(update={"seconds": 10 * DATA_S})
    part = timings.mean_over_median
    assert part == pytest.approx(1 / 6)
    (warning,) = [one for one in of_figures("small", (), [timings], steady=True) if one.code == "slow-steps"]
    assert "on average a step takes 16.7 % longer than shown" in warning.message
