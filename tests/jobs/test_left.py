"""The split of a plan over the devices that are left of it."""

from __future__ import annotations

from itertools import chain, combinations

import pytest

from gpubalance.errors import BadInput, NothingFits
from gpubalance.jobs.plan.plan import check_curves, plan, split_over
from gpubalance.settings.planning import PlanRequest
from tests.jobs.probes import of_config, probe_of
from tests.support.altered import altered
from tests.support.cases import cases


@cases("config, global_batch", ("two-hosts", 144), ("gtx1070-m40-gtx750", 200))
def test_it_is_the_split_of_a_plan_of_these_alone(
    config: str, global_batch: int
) -> None:
    """Whether the devices' step times are lines or curves, and whether they were in use or not."""
    devices, _ = of_config(config)
    request = PlanRequest(global_batch=global_batch, sync_s=0.01)
    whole = plan(probe_of(devices), devices, request)
    numbers = range(len(devices))
    for left in chain.from_iterable(
        combinations(numbers, count + 1) for count in numbers
    ):
        some = tuple(devices[number] for number in left)
        expected = dict.fromkeys(numbers, 0)
        expected |= zip(left, plan(probe_of(some), some, request).batches, strict=True)
        assert split_over(whole, set(left)).batches == tuple(expected.values()), left


def test_what_memory_does_not_hold_is_left_away() -> None:
    devices, _ = of_config("quick-pair")
    probe = probe_of(devices)
    without_sync = PlanRequest(sync_s=0.0)
    limits = [share.limit for share in plan(probe, devices, without_sync).shares]
    maximum = sum(limits)
    whole = plan(probe, devices, PlanRequest(global_batch=maximum, sync_s=0.0))
    for left in (0, 1):
        assert split_over(whole, {left}).batches[left] == limits[left]
    wanted = PlanRequest(global_batch=maximum + 8, sync_s=0.0, accumulate=8)
    in_parts = plan(probe, devices, wanted)
    assert split_over(in_parts, {0}).batches == (min(2 * limits[0], maximum + 8), 0)
    with pytest.raises(NothingFits):
        split_over(whole, set())
    with pytest.raises(BadInput, match="--restarts needs the devices' step times"):
        check_curves(altered(whole, curves=()))
