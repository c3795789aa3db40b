"""Of equal devices one is probed, and its figures are those of the others; `each` probes all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpubalance.devices.selection import first_equal
from gpubalance.errors import NothingFits, PartialResult, TimeLimitPassed
from gpubalance.jobs.balance.balance import balance, new_probe
from gpubalance.jobs.events import Doing, Event
from gpubalance.jobs.journal import journal_of
from gpubalance.jobs.phases import estimate
from gpubalance.jobs.probe.probe import compare_pipeline, probe
from gpubalance.jobs.saved import best_probe, kept_probe, save
from gpubalance.render.probe import probe_summary
from gpubalance.results.plan import Plan
from gpubalance.results.probe import CurvePoint, Probe
from gpubalance.settings.device import DeviceProfile
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest, ProbeRequest
from gpubalance.settings.settings import Settings
from gpubalance.system.deadlines import TimeLimit
from tests.cli.program import TINY
from tests.jobs.drawn import nothing_kept, quiet
from tests.jobs.probes import MIB, QUICK, devices_of, done
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known

pytestmark = pytest.mark.usefixtures("either_engine")
OTHER = altered(QUICK, name="other")
FIRST_DIES = """
import os
def step(devices, batches, number):
    if devices[0].index == 0:
        os._exit(9)
"""
TEXT = "GPU:1: not probed: equal to GPU:0; --each probes it"


def request_of(*profiles: DeviceProfile, **options: object) -> ProbeRequest:
    asked = {"duration_s": 0.2, "max_batch": 16, **options}
    return ProbeRequest(
        devices=devices_of(*profiles), settings=Settings(model=TINY), **asked
    )


def probed(request: ProbeRequest) -> tuple[Probe, list[Event]]:
    events: list[Event] = []
    return probe(request, events.append, nothing_kept()), events


def test_the_pipelines_batch_is_no_larger_than_the_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last device equals another, so no worker of its own said how much there is."""
    batches: list[int] = []
    monkeypatch.setattr(
        "gpubalance.jobs.probe.probe.measure_input_pipeline",
        lambda _, batch, __: batches.append(batch),
    )
    best = SimpleNamespace(solo_best=SimpleNamespace(batch=512, throughput=1.0))
    probed: list[Any] = []
    for facts in (SimpleNamespace(samples=700), None):
        probe_worker = SimpleNamespace(facts=facts, worker_group=None)
        probed.append(SimpleNamespace(probe_worker=probe_worker))
    request = SimpleNamespace(settings=Settings(model=TINY, data="d.py:data"))
    devices: Any = {"all": probed, "next_group": None, "request": request}
    how: Any = {"records": lambda: [best, best], "watch": quiet}
    with suppress(AttributeError):  # there is no rate to hold against
        compare_pipeline(cast("Any", SimpleNamespace(**devices, **how)))
    assert batches == [700]


def measured_on(events: Sequence[Event]) -> set[int]:
    """The numbers of the devices on which a batch was measured."""
    return {event.devices[0].index for event in done(events, CurvePoint)}


@cases("parallel", False, True)
def test_of_equal_devices_one_is_probed_and_that_is_said(*, parallel: bool) -> None:
    result, events = probed(request_of(QUICK, QUICK, parallel=parallel))
    assert measured_on(events) == {0}
    assert TEXT in [event.text for event in events if isinstance(event, Doing)]
    assert TEXT in list(probe_summary(result))
    first, second = result.probes
    assert (first.same_as, second.same_as) == (None, "GPU:0")
    assert (second.device, second.children, second.elapsed_s) == (1, 0, 0.0)
    for name in ("curve", "solo_best", "batch_limit"):
        assert getattr(second, name) == getattr(first, name)
    assert result.complete
    assert not result.warnings  # nothing was measured beside another device


@cases("parallel", False, True)
def test_each_is_probed_if_asked_for_and_unlike_ones_are(*, parallel: bool) -> None:
    for profiles, each in (((QUICK, QUICK), True), ((QUICK, OTHER), False)):
        result, events = probed(request_of(*profiles, each=each, parallel=parallel))
        assert measured_on(events) == {0, 1}
        assert [one.same_as for one in result.probes] == [None, None]


def test_equal_devices_need_not_stand_side_by_side() -> None:
    """Equal devices need not stand side by side and the time is that of those that are probed."""
    asked = request_of(QUICK, OTHER, QUICK)
    result, events = probed(asked)
    assert measured_on(events) == {0, 1}
    assert [one.same_as for one in result.probes] == [None, None, "GPU:0"]
    names = [phase.name for phase in estimate(asked).phases]
    assert names == ["GPU:0 alone", "GPU:1 alone"]
    every = altered(asked, each=True)
    assert len(estimate(every).phases) == 3
    at_once = altered(asked, parallel=True)
    assert estimate(at_once).seconds == estimate(every).phases[0].seconds


def test_devices_are_equal_by_name_memory_profile_and_host() -> None:
    first, second = devices_of(QUICK, QUICK)
    assert first_equal([first, second]) == [0, 0]
    other = altered(QUICK, alpha_s=1.0)
    changes = {"name": "another", "memory_bytes": 1, "profile": other, "host": "beta"}
    for name, value in changes.items():
        assert first_equal([first, altered(second, **{name: value})]) == [0, 1]
    there = [altered(device, host="beta") for device in (first, second)]
    assert first_equal([first, *there, second]) == [0, 1, 1, 0]


def test_what_one_does_not_hold_an_equal_one_does_not_hold() -> None:
    small = altered(QUICK, memory=66 * MIB)
    with pytest.raises(NothingFits) as caught:
        probe(request_of(small, small, OTHER), quiet, nothing_kept())
    result = caught.value.partial
    assert isinstance(result, Probe)
    limits = [known(one.batch_limit).fits for one in result.probes]
    assert limits == [None, None, 16]
    assert [len(one.failures) for one in result.probes] == [1, 0, 0]


def test_a_balance_is_told_of_a_device_that_holds_nothing() -> None:
    devices = devices_of(altered(QUICK, memory=66 * MIB), OTHER)
    wanted = PlanRequest(max_global_batch=16)
    settings = Settings(model=TINY)
    asked = BalanceRequest(devices=devices, settings=settings, plan=wanted, probe_s=0.2)
    heard: list[Event] = []
    with journal_of(asked, resume=False) as journal:
        made = new_probe(asked, TimeLimit(), heard.append, journal)
    assert [known(one.batch_limit).fits for one in made.probes] == [None, 16]
    texts = [event.text for event in heard if isinstance(event, Doing)]
    assert f"{TINY} does not fit on GPU:0 at batch size 1: it needs" in texts[-1]


def test_a_probe_is_resumed_and_still_says_which_devices_were_not_probed() -> None:
    asked = request_of(QUICK, OTHER, QUICK)

    def until_second(event: Event) -> None:
        if any(one.devices[0] == asked.devices[1] for one in done([event], CurvePoint)):
            raise TimeLimitPassed(1.0)

    fresh = journal_of(asked, resume=False)
    with pytest.raises(TimeLimitPassed) as caught, fresh as journal:
        probe(asked, until_second, journal)
    partial = caught.value.partial
    assert isinstance(partial, Probe)
    assert [one.device for one in partial.probes] == [0, 1, 2]
    assert [one.same_as for one in partial.probes] == [None, None, "GPU:0"]
    assert not partial.complete
    with journal_of(asked, resume=True) as journal:
        again = probe(asked, quiet, journal)
    assert again.complete
    assert again.probes[0].curve == again.probes[2].curve
    assert [one.same_as for one in again.probes] == [None, None, "GPU:0"]


def test_a_kept_probe_serves_unless_each_is_asked_for() -> None:
    asked = request_of(QUICK, QUICK)
    result, _ = probed(asked)
    save(result)
    found = known(best_probe(asked.devices[1:], asked.settings, up_to=16))
    assert found.created == result.created
    upto = PlanRequest(max_global_batch=16)
    plain = BalanceRequest(devices=asked.devices, settings=asked.settings, plan=upto)
    assert kept_probe(plain) is not None
    assert kept_probe(altered(plain, each=True)) is None


def balanced() -> tuple[Plan, list[Event]]:
    """The balance of two equal devices for 64 samples, and its events."""
    events: list[Event] = []
    asked = BalanceRequest(
        devices=devices_of(QUICK, QUICK),
        settings=Settings(model=TINY),
        plan=PlanRequest(global_batch=64),
        measuring=Measuring(windows=2, duration_s=0.3),
        round_s=0.3,
        probe_s=0.2,
    )
    with journal_of(asked, resume=False) as journal:
        return balance(asked, events.append, journal), events


def test_a_balance_of_equal_devices_gives_them_equal_shares() -> None:
    plan, events = balanced()
    assert measured_on(events) == {0}
    assert plan.batches == (32, 32)
    alone = known(plan.run).baselines.solo_best or ()
    assert [one.device for one in alone] == [0, 1]
    assert alone[0].throughput == alone[1].throughput


def test_one_whose_equal_failed_is_probed(engine_that: Callable[[str], None]) -> None:
    engine_that(FIRST_DIES)
    events: list[Event] = []
    with pytest.raises(PartialResult) as caught:
        probe(request_of(QUICK, QUICK), events.append, nothing_kept())
    assert measured_on(events) == {1}
    result = caught.value.partial
    assert isinstance(result, Probe)
    assert [one.complete for one in result.probes] == [False, True]
    assert [one.same_as for one in result.probes] == [None, None]


def test_rounds_find_that_an_equal_holds_less(
    engine_that: Callable[[str], None],
) -> None:
    holds = "size <= 16 if device.index == 1 else None"
    engine_that(f"def holds(device, size): return {holds}")
    plan, _ = balanced()
    assert plan.batches == (48, 16)
