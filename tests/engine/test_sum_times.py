"""Sums over some of the devices, as they are timed."""

from __future__ import annotations

import pytest

from gpubalance.settings.choices import AllReduce
from gpubalance.settings.settings import Settings
from tests.engine.steps import plain_replicas
from tests.jobs.probes import of_config
from tests.support.cases import cases


@cases("all_reduce", "auto", "one-device")
def test_a_sum_over_some_devices_has_just_these(all_reduce: AllReduce) -> None:
    import tensorflow as tf

    from gpubalance.engine.replicas import build_strategy, sum_over

    replicas = plain_replicas(4, all_reduce)
    strategies = build_strategy.cache_info().misses
    for places in ((0, 1, 2, 3), (0, 2, 3), (1, 3)):
        for in_turn in (1, 3):
            sums = sum_over(replicas, places, in_turn)(tf.constant(1000))
            assert [total.numpy() for total in sums] == [len(places)] * len(places)
    # All of them sum with the strategy that they train with.
    assert build_strategy.cache_info().misses == strategies + 2


def test_simulated_devices_take_their_profiles_sync() -> None:
    """The last card of the published four has the longest."""
    from gpubalance.engine.session import Session

    devices, joint = of_config("gtx1070-m40-gtx750")
    session = Session(devices, Settings(model="small"), joint, seed=0)
    seconds = session.time_sums([(0, 1, 2), (0, 1, 2, 3)], nbytes=1000)
    assert seconds == pytest.approx((0.078, 0.1))
