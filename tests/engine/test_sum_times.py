"""Sums over some of the devices, as they are timed."""

from __future__ import annotations

import pytest

from gpubalance.devices.hosts import connect_hosts
from gpubalance.devices.profile import simulated_devices
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import AllReduce
from gpubalance.settings.settings import Settings
from gpubalance.settings.summing import Summing
from gpubalance.workers.messages import Build, SumsTimed, TimeSums
from gpubalance.workers.worker_group import WorkerGroup
from tests.jobs.probes import of_config
from tests.support.asked import asked


@pytest.mark.parametrize("all_reduce", ["auto", "one-device"])
def test_a_sum_over_some_devices_has_just_these(all_reduce: AllReduce) -> None:
    import tensorflow as tf

    from gpubalance.engine.replicas import build_strategy, replicas_on
    from gpubalance.engine.sum_times import sum_over

    devices, joint = simulated_devices("4")
    names = tuple(device.label for device in devices)
    replicas = replicas_on(devices, names, joint, Summing(all_reduce))
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


@pytest.mark.full  # three processes
def test_processes_on_several_hosts_sum_over_some_of_them() -> None:
    """The first one is in only one of the groups, and all train together afterwards."""
    hosts = ("alpha", "beta", "gamma")
    connect_hosts(",".join(hosts), "env ON={host}")
    devices, joint = simulated_devices(1, hosts)
    build = Build(settings=Settings(model="small"), joint=joint)
    request = TimeSums(groups=((1, 2), (0, 1, 2), (1, 2)), nbytes=1000)
    try:
        with WorkerGroup(devices, build=build) as worker_group:
            timed = asked(worker_group, lambda worker: worker.ask(request, SumsTimed))
            split = BatchSplit((4, 4, 4))
            timing, _ = asked(worker_group, lambda worker: list(worker.measure(split)))
    finally:
        connect_hosts(None, None)
    assert len(timed.seconds) == 3
    assert min(timed.seconds) > 0
    assert isinstance(timing, Timing)
    assert timing.loss_is_finite
