"""The distance from the solo sum: its parts are all of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.devices.profile import simulated_devices
from gpubalance.render.run import large_losses
from gpubalance.results.run import DeviceRun, SoloGap, divide_gap
from tests.support.altered import altered

seconds = st.floats(1e-3, 10)


@st.composite
def runs(draw: st.DrawFn) -> list[DeviceRun]:
    rates, batches = st.floats(1, 1e5), st.integers(0, 1000)
    ran = st.builds(DeviceRun, rates, batches, seconds, seconds)
    many = st.lists(ran, min_size=1, max_size=5)
    return draw(many.filter(lambda of: any(one.batch for one in of)))


@given(runs(), st.floats(0, 1), st.floats(0, 1))
def test_parts_sum_to_all(ran: list[DeviceRun], sync_s: float, slow_s: float) -> None:
    step_s = max(one.busy_s for one in ran if one.batch) + sync_s + slow_s
    gap = divide_gap(ran, step_s, slow_s)
    throughput = sum(one.batch for one in ran) / step_s
    solo = sum(one.solo_best for one in ran)
    parts = (gap.left_out, gap.batch_sizes, gap.imbalance, gap.sync, gap.slow)
    lost = sum(parts) + sum(gap.slowdown)
    assert gap.solo_sum == pytest.approx(solo)
    assert gap.throughput == pytest.approx(throughput)
    assert lost == pytest.approx(solo - throughput, rel=1e-9, abs=1e-6 * solo)
    assert gap.imbalance >= -1e-6 * solo
    assert gap.sync >= -1e-6 * solo


def test_each_cause_has_its_part() -> None:
    ran = [
        DeviceRun(1000.0, 90, 0.1, 0.1),
        DeviceRun(500.0, 50, 0.1, 0.125),
        DeviceRun(70.0, 0, 0.0, 0.0),
    ]
    gap = divide_gap(ran, 0.2, 0.03, xla=50.0)
    assert gap.without_xla == 50.0
    assert gap.solo_sum == pytest.approx(1620.0)
    assert gap.left_out == 70
    assert gap.batch_sizes == pytest.approx(100)  # 900 of 1000, 500 of 500
    assert gap.slowdown == pytest.approx((0, 100, 0))  # 500, and 400 in the run
    assert gap.imbalance == pytest.approx(1300 - 140 / 0.125)
    assert gap.sync == pytest.approx(140 / 0.125 - 140 / 0.17)
    assert gap.slow == pytest.approx(140 / 0.17 - 140 / 0.2)


@pytest.mark.parametrize(("part", "is_lost"), [(0.8e-9, False), (1.2e-9, True)])
def test_less_than_a_billionth_is_rounding(part: float, is_lost: bool) -> None:
    took_s = 0.1 * (1 + part)
    gap = divide_gap([DeviceRun(1000.0, 100, 0.1, took_s)], took_s)
    assert (gap.slowdown[0] > 0) == is_lost
    assert (gap.batch_sizes, gap.imbalance, gap.sync, gap.slow) == (0.0,) * 4


def test_what_is_too_small_to_matter_is_told_only_if_it_adds_up() -> None:
    devices = simulated_devices("4")[0]
    parts = {"left_out": 0.0, "batch_sizes": 50.0, "imbalance": -1e-10, "sync": 0.9}
    parts |= {"solo_sum": 1000.0, "slow": 0.0, "throughput": 949.1}
    gap = SoloGap(slowdown=(8e-10, 0.0, 0.0, 0.0), **parts)
    (loss,) = large_losses(devices, gap)
    assert (loss.cause, loss.rate) == ("not each device's best batch size", 50.0)
    slow = altered(gap, slowdown=(0.6, 0.7, 0.0, 0.0), throughput=947.8)
    (batches, rest) = large_losses(devices, slow)
    assert (rest.cause, round(rest.rate, 6)) == ("the rest", 2.2)
    waiting = altered(gap, sync=30.0, throughput=920.0)
    (largest, rest) = large_losses(devices, waiting, maximum=1)
    assert (largest, rest.cause, round(rest.rate, 6)) == (batches, "the rest", 30.0)
