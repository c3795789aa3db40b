"""What the probe says of simulated devices is what their profiles say.

The job, the workers and the search are the real ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from gpubalance.jobs.events import Event, TimeLeft, Watch
from gpubalance.jobs.probe.curve import at_device_pace
from gpubalance.jobs.probe.probe import probe
from gpubalance.planning.curve import wanted_precision
from gpubalance.planning.model import LINE_WITHIN
from gpubalance.results.probe import CurvePoint, DeviceProbe, Probe, StepTimeModel
from gpubalance.settings.device import DeviceProfile, DriftPoint
from gpubalance.settings.requests import ProbeRequest
from gpubalance.settings.settings import Settings
from tests.cli.program import TINY
from tests.jobs.drawn import nothing_kept, quiet
from tests.jobs.probes import (
    MIB,
    QUICK,
    SMALL,
    devices_of,
    done,
    held_by,
    of_config,
    point_of,
)
from tests.support.altered import altered
from tests.support.known import known

pytestmark = [
    pytest.mark.usefixtures("either_engine"),
    pytest.mark.xdist_group("probes"),
]
PAIR, _ = of_config("gtx1080ti-gtx1080")


def probed(*profiles: DeviceProfile, watch: Watch = quiet, **options: object) -> Probe:
    how: Any = {"settings": Settings(model=TINY), "duration_s": 0.6, **options}
    asked = ProbeRequest(devices=devices_of(*profiles), **how)
    return probe(asked, watch, nothing_kept())


@pytest.fixture(scope="module")
def events_of_pair() -> list[Event]:
    """What was told while the pair was probed."""
    return []


@pytest.fixture(scope="module")
def pair(either_engine: None, events_of_pair: list[Event]) -> Probe:
    how: Any = {"batch_multiple": 1, "duration_s": 0.6, "parallel": True}
    asked = ProbeRequest(devices=PAIR, settings=SMALL, **how)
    return probe(asked, events_of_pair.append, nothing_kept())


def limit_of(one: DeviceProbe) -> tuple[int | None, int | None]:
    limit = known(one.batch_limit)
    return limit.fits, limit.fails


def model_of(one: DeviceProbe) -> StepTimeModel:
    return known(one.step_time_model)


@pytest.mark.parametrize("number", [0, 1])
def test_the_published_pair(pair: Probe, number: int) -> None:
    one = pair.probes[number]
    profile = known(PAIR[number].profile)
    model = model_of(one)
    assert model.beta_s == pytest.approx(profile.beta_s, rel=0.02)
    assert model.alpha_s == pytest.approx(profile.alpha_s, rel=0.05, abs=0.0015)
    # A single point that other work has touched is reason enough to plan with the curve.
    assert (model.planned_with == "line") == (model.residual <= LINE_WITHIN)
    limit = known(one.batch_limit)
    assert limit_of(one) == (held_by(profile), held_by(profile) + 1)
    assert len(limit.trials) <= 4
    assert sum(t.outcome != "fits" for t in limit.trials) <= 2
    assert one.steady
    assert one.complete


@pytest.mark.usefixtures("pair")
def test_the_time_left_of_devices_at_once_is_told(events_of_pair: list[Event]) -> None:
    """It is told once both have points enough."""
    told = [event for event in events_of_pair if isinstance(event, TimeLeft)]
    first = events_of_pair.index(told[0])
    before = done(events_of_pair[:first], CurvePoint)
    assert {device for one in before for device in one.devices} == set(PAIR)
    assert len(told) > 2
    assert all(min(event.duration.least_s, event.step_s) > 0 for event in told)


def test_on_a_line_few_sizes_are_enough_from_small_to_the_limit(pair: Probe) -> None:
    """On a line few sizes are enough from small to the limit and the sensible size."""
    for one in pair.probes:
        sizes = [point.batch for point in one.curve]
        assert one.on_line
        assert sizes[0] == 1
        assert sizes[-1] == limit_of(one)[0]
        assert all(high < 8 * low for low, high in pairwise(sizes))
        assert len(sizes) <= sizes[-1].bit_length() / 2 + 4
        line = model_of(one).planned
        near_best = 0.95 * known(one.solo_best).throughput
        wanted = 1
        while wanted / line.step_time_s(wanted) < near_best:
            wanted += 1
        assert known(one.sensible).batch == pytest.approx(wanted, rel=0.1)
        assert all(point.memory_peak_bytes for point in one.curve)


def test_off_it_the_curve_is_dense_at_the_knee_and_under_the_limit(
    engine_that: Callable[[str], None],
) -> None:
    """Off it the curve is dense at the knee and has a size just under the limit."""
    took = "max(0.05, 0.0005 * batches[0])"
    engine_that(f"def step(devices, batches, number): return {took}")
    roomy = altered(QUICK, memory=1024 * MIB, memory_per_sample=MIB)
    (one,) = probed(roomy).probes
    sizes = [point.batch for point in one.curve]
    assert one.on_line is False
    assert {64, 80, 104, 128} <= set(sizes)
    assert any(0.9 * sizes[-1] <= size < sizes[-1] for size in sizes)
    assert model_of(one).planned_with == "curve"
    # The rounds of a balance measure again where it matters.
    (short,) = probed(roomy, for_split=True).probes
    fewer = [point.batch for point in short.curve]
    assert len(fewer) < 2 / 3 * len(sizes)
    assert fewer[-1] == sizes[-1]
    assert 64 in fewer


def test_a_point_is_measured_until_it_is_precise_and_no_longer() -> None:
    """A point is measured until it is precise and no longer unless that is asked for."""
    noisy = altered(QUICK, noise=0.06)
    lengths = []
    for profile, duration_s, for_split in (
        (QUICK, None, False),
        (noisy, None, False),
        (noisy, None, True),
        (QUICK, 6.0, False),
    ):
        asked: Any = {"duration_s": duration_s, "for_split": for_split, "max_batch": 16}
        (one,) = probed(profile, **asked).probes
        for point in one.curve:
            wanted = wanted_precision(point.batch, 16)
            assert point.half_width <= (0.03 if for_split else wanted)
        lengths.append([len(point.step_time_s.samples) for point in one.curve])
    usual, unsure, rough, long = lengths
    assert set(usual) == {3, 5}  # up to half of the largest, and above
    assert min(unsure) >= 3
    assert sum(unsure) > max(sum(usual), sum(rough))
    assert min(long) >= 12


NOISY = altered(QUICK, name="noisy", noise=0.03, alpha_s=0.030, beta_s=0.0005)
HOT = altered(QUICK, name="hot", drift=(DriftPoint(from_s=1.5, factor=1.4),))


@pytest.fixture(scope="module")
def unsteady(either_engine: None) -> tuple[Probe, list[Event]]:
    """The probe of two unsteady devices at once, as each mostly waits, and its events."""
    events: list[Event] = []
    return probed(NOISY, HOT, parallel=True, watch=events.append), events


def test_3_percent_noise_is_no_harm(unsteady: tuple[Probe, list[Event]]) -> None:
    model = model_of(unsteady[0].probes[0])
    assert model.beta_s == pytest.approx(NOISY.beta_s, rel=0.04)
    assert model.alpha_s == pytest.approx(NOISY.alpha_s, rel=0.10)


def test_a_device_that_throttles_is_marked_and_measured_once_more(
    unsteady: tuple[Probe, list[Event]],
) -> None:
    """A device that throttles is marked and measured once more and never steady."""
    result, events = unsteady
    one = result.probes[1]
    assert not one.steady
    assert not any(point.steady for point in one.curve)
    assert all(point.measured_again for point in one.curve)
    warned = [one.code for one in result.warnings if "GPU:1" in one.message]
    assert "throttled" in warned
    assert any("use a profile without drift" in one.next for one in result.warnings)
    points = [one for one in done(events, CurvePoint) if one.devices[0].index == 1]
    measured = Counter(one.record.batch for one in points)
    assert {*measured.values()} == {2}
    # One speed is reported: that of the device in the long run.
    assert model_of(one).beta_s == pytest.approx(1.4 * QUICK.beta_s, rel=0.05)
    assert model_of(one).residual < 0.03


def test_steps_at_the_hosts_pace_do_not_tell_how_fast_the_device_is() -> None:
    """In seconds, as an H200 took them for the built-in model, in the order of the probe."""
    seen = {8: 0.0118, 16: 0.0112, 32: 0.0105, 80: 0.0115}
    seen |= {136: 0.0143, 176: 0.0165, 256: 0.0207}
    points = [point_of(QUICK, batch, step_s) for batch, step_s in seen.items()]
    assert [point.batch for point in at_device_pace(points)] == [80, 136, 176, 256]
    (one,) = probed(QUICK, max_batch=64, duration_s=0.2).probes
    assert at_device_pace(one.curve) == list(one.curve)


def test_a_margin_is_kept_free_and_the_update_is_measured_apart() -> None:
    """A margin is kept free and the update is measured apart and is part of the step."""
    updating = altered(QUICK, update_s=0.020)
    asked: Any = {"margin_bytes": 100 * MIB, "batch_multiple": 1, "duration_s": 0.2}
    (one,) = probed(updating, **asked).probes
    assert limit_of(one) == (87, 88)
    trials = known(one.batch_limit).trials
    assert [one.outcome for one in trials if one.batch == 88] == ["margin"]
    assert max(point.memory_peak_bytes or 0 for point in one.curve) <= 412 * MIB
    assert known(one.update_s) >= 0.020 - 1e-6
    for point in one.curve:
        assert point.step_time_s.median >= updating.compute_s(point.batch) + 0.019
