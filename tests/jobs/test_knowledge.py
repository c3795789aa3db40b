"""What is known of the devices after each measurement of them together.

Known are their speed and the best of the splits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from gpubalance.jobs.balance.proof import solo_gap
from gpubalance.jobs.plan.estimates import DeviceEstimates, _factor_at
from gpubalance.jobs.plan.plan import plan_of
from gpubalance.jobs.plan.problem import best_split
from gpubalance.planning.problem import Allocation
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import JointProfile
from gpubalance.settings.planning import PlanRequest
from tests.jobs.drawn import drawn_run
from tests.jobs.probes import (
    QUICK,
    devices_of,
    inside,
    measurement_of,
    of_config,
    probe_of,
    with_memory,
)
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known as sure

PAIR, _ = of_config("quick-pair")
UPDATING = devices_of(*(altered(sure(one.profile), update_s=0.005) for one in PAIR))


def knowledge() -> DeviceEstimates:
    probe = probe_of(PAIR)
    return DeviceEstimates(probe, probe.devices, PlanRequest(accumulate=1))


def planned(*batches: int) -> Allocation:
    times_s = tuple(batch / 1000 for batch in batches)
    return Allocation(BatchSplit(batches), times_s, 1.0, ("speed", "speed"))


def learn(
    known: DeviceEstimates,
    batches: tuple[int, int],
    factor: float,
    sync_s: float = 0.004,
) -> float:
    """Learns a split, and returns its samples per second.

    On it the first device takes `factor` times as long as alone.
    """
    split = planned(*batches)
    computes = [known.alone_s(i, split.split) * f for i, f in enumerate((factor, 1.0))]
    measured = measurement_of(batches, computes, sync_s)
    known.learn(split, measured)
    return measured.throughput.median


def best_of(known: DeviceEstimates) -> tuple[int, ...]:
    return sure(known.best()).planned.split.batches


def test_of_splits_as_fast_as_each_other_the_smaller_global_batch_is_best() -> None:
    known = knowledge()
    for slower, best in ((1.001, (120, 80)), (1.02, (150, 100))):
        larger = learn(known, (150, 100), 1.0)
        computes = [slower * 200 / larger - 0.004] * 2
        known.learn(planned(120, 80), measurement_of((120, 80), computes, sync_s=0.004))
        assert best_of(known) == best


def test_a_devices_update_is_its_own_wherever_it_trains() -> None:
    """Learned of both together, it is neither their sync nor forgotten of one alone."""
    probe = probe_of(UPDATING)
    known = DeviceEstimates(probe, probe.devices, PlanRequest(global_batch=64))
    first, second = (sure(device.profile) for device in UPDATING)
    together = [first.compute_s(64), second.compute_s(32)]
    measured = measurement_of((64, 32), together, sync_s=0.004, update_s=0.005)
    known.learn(planned(64, 32), measured)
    problem = known.problem
    assert problem.sync.of({0, 1}) == pytest.approx(0.004)
    for load, profile in zip(problem.loads, (first, second), strict=True):
        assert load.update_s == pytest.approx(0.005)
        assert load.model.step_time_s(64) == pytest.approx(profile.compute_s(64))
    kept, idle = problem.loads
    alone = best_split(replace(problem, loads=(kept, replace(idle, limit=0))))
    assert alone.step_time_s == pytest.approx(first.compute_s(64) + 0.005)


def test_rare_slow_steps_are_neither_sync_nor_a_splits_own() -> None:
    known = knowledge()
    for batches, slow_s in (((120, 80), 0.02), ((96, 64), 0.0)):
        split = planned(*batches)
        computes = [known.alone_s(device, split.split) for device in range(2)]
        usual = measurement_of(batches, computes, sync_s=0.004)
        step_s = usual.step_time_s.median + slow_s
        slowly = inside(usual, "step_time_s", median=step_s, samples=(step_s,))
        known.learn(split, altered(slowly, slow_s=slow_s))
        assert known.problem.sync.of({0, 1}) == pytest.approx(0.004)
    assert best_of(known) == (120, 80)


@cases(
    "slower, half_width, global_batch, holds, batches",
    (1.04, 0.03, 200, 112, (100, 100)),  # 2 % to gain, of times known within ± 3 %
    # Beside another device one sample less fits
    (1.04, 0.03, 200, 101, (100, 100)),
    (1.04, 0.03, 200, 100, (103, 97)),
    (1.04, 0.01, 200, 112, (103, 97)),
    (1.2, 0.03, 200, 112, (111, 89)),
    (1.04, 0.03, 201, 112, (103, 98)),  # has no even split
    (1.04, 0.03, None, 112, (108, 108)),
)
def test_the_even_split_is_tried_first_if_the_probe_shows_no_better_one(
    slower: float,
    half_width: float,
    global_batch: int | None,
    holds: int,
    batches: tuple[int, int],
) -> None:
    first, second = devices_of(QUICK, QUICK)
    pair = first, with_memory(second, holds)
    probe = probe_of(pair, wrong=(1.0, slower), multiple=1)
    probes = []
    for one in probe.probes:
        points = []
        for point in one.curve:
            time_s = point.step_time_s.median
            ci95 = (time_s * (1 - half_width), time_s * (1 + half_width))
            points.append(inside(point, "step_time_s", ci95=ci95))
        probes.append(altered(one, curve=tuple(points)))
    probe = altered(probe, probes=tuple(probes))
    known = DeviceEstimates(
        probe, probe.devices, PlanRequest(global_batch=global_batch)
    )
    tried = known.even_if_undecided(best_split(known.problem))
    assert tried.split == BatchSplit(batches)
    busy_s = max(known.alone_s(device, tried.split) for device in (0, 1))
    assert tried.step_time_s == pytest.approx(busy_s)


def test_no_device_is_slower_than_alone_for_its_update() -> None:
    run = drawn_run(UPDATING, JointProfile(sync_s=0.004), (64, 40), seed=1)
    probe = probe_of(UPDATING)
    known = DeviceEstimates(probe, probe.devices, PlanRequest())
    gap = sure(solo_gap(known, BatchSplit((64, 40)), run))
    assert gap.slowdown == pytest.approx((0.0, 0.0), abs=1e-3)
    assert run.sync_s == pytest.approx(0.004)


@cases(
    "first, then, changed",
    (((64, 32), 1.0), ((64, 32), 1.04), []),
    (((64, 32), 1.0), ((64, 32), 1.08), [(0, pytest.approx(0.08))]),
    (((64, 32), 1.0), ((64, 32), 0.9), [(0, pytest.approx(-0.1))]),
    # With another batch the step-time model is wrong, however much the time changes.
    (((64, 32), 1.0), ((32, 32), 1.4), []),
    # A probe that was wrong all along is no change.
    (((64, 32), 1.3), ((64, 32), 1.3), []),
)
def test_a_device_has_changed_its_speed_if_the_same_split_takes_it_longer(
    first: tuple[tuple[int, int], float],
    then: tuple[tuple[int, int], float],
    changed: list[object],
) -> None:
    known = knowledge()
    learn(known, *first)
    learn(known, *then)
    assert list(known.changed()) == changed
    assert known.problem.sync.of({0, 1}) == pytest.approx(0.004)


def test_what_noise_leaves_open_is_no_change() -> None:
    known = knowledge()
    split = planned(64, 32)
    for first_s in (0.100, 0.108):
        measured = measurement_of((64, 32), [first_s, 0.1])
        known.learn(split, inside(measured, "step_time_s", ci95=(0.097, 0.103)))
    assert list(known.changed()) == []


def seen(known: DeviceEstimates, batches: tuple[int, int], *steps_s: float) -> None:
    """Learns a split with these step times."""
    measured = measurement_of(batches, [steps_s[0]] * 2)
    known.learn(planned(*batches), inside(measured, "step_time_s", samples=steps_s))


WIDE = (0.99, 1.01, 1.0, 0.99, 1.01)
NARROW = (0.9999, 1.0001, 1.0, 0.9999, 1.0001)


@cases(
    "spreads, slower, doubtful",
    ((WIDE, NARROW), 1.002, (64, 48)),
    ((NARROW, WIDE), 1.002, (56, 48)),
    ((NARROW, NARROW), 1.002, None),
    ((NARROW, NARROW), 1.0, None),  # no more is open than is worth a round
    ((WIDE, WIDE), 1.015, (56, 48)),
    ((WIDE, WIDE), 1.02, None),  # it may be faster, but by less than that
)
def test_of_two_splits_too_close_to_tell_the_less_exact_is_doubtful(
    spreads: tuple[tuple[float, ...], tuple[float, ...]],
    slower: float,
    doubtful: tuple[int, int] | None,
) -> None:
    """Of two splits that are too close to tell the one that is known less exactly is doubtful."""
    known = knowledge()
    splits = ((64, 48), 1.0), ((56, 48), slower)
    for (batches, factor), spread in zip(splits, spreads, strict=True):
        seen(known, batches, *(factor * sum(batches) / 1000 * part for part in spread))
    found = known.most_uncertain_rival()
    assert (found and found.planned.split.batches) == doubtful


def test_what_a_device_gave_before_it_changed_is_forgotten() -> None:
    """What a device gave before it changed is forgotten and what others gave is not."""
    known = knowledge()
    learn(known, (64, 48), 1.0)
    learn(known, (64, 40), 1.0)
    alone = measurement_of((64,), [0.1])
    (replica,) = alone.replicas
    known.learn(planned(0, 64), altered(alone, replicas=(altered(replica, device=1),)))
    learn(known, (64, 40), 2.0)
    measured = [
        known.is_measured_now(BatchSplit(batches))
        for batches in ((64, 48), (64, 40), (0, 64))
    ]
    assert measured == [False, True, True]


def test_a_size_that_was_measured_takes_what_it_took_on_average() -> None:
    """A size that was measured takes what it took on average, and those beside it what is usual."""
    known = knowledge()
    for batch, factor in ((64, 0.99), (64, 1.01), (96, 1.0), (80, 0.97)):
        learn(known, (batch, 32), factor)
    first = known.problem.loads[0].model
    for batch, factor in ((64, 1.0), (72, 0.99), (80, 0.97), (96, 1.0)):
        taken_s = factor * (0.008 + 0.0002 * batch)
        assert first.step_time_s(batch) == pytest.approx(taken_s, rel=1e-9)


def test_what_no_device_gave_alone_is_promised_of_none() -> None:
    """A late stamp: the first device seems to take half of its time in one split."""
    known = knowledge()
    learn(known, (64, 40), 0.55)
    (first, _) = known.probes
    maximum = 1.5 * max(point.throughput.median for point in first.curve)
    load = known.problem.loads[0]
    rates = [batch / load.model.step_time_s(batch) for batch in (8, 64, 72, load.limit)]
    assert max(rates) == pytest.approx(maximum)


@cases("batches, step_s", ((64, 0), 0.05), ((64, 0), 0.09), ((64, 32), 0.05))
def test_a_device_alone_has_no_sync_and_no_split_has_less_than_none(
    batches: tuple[int, int], step_s: float
) -> None:
    """However far apart the times of 64 ms and of a step were measured."""
    measured = replace(planned(*batches), step_time_s=step_s)
    plan = plan_of(knowledge(), measured)
    assert plan.predicted.sync_s == 0.0


def test_stamps_that_cannot_be_right_are_not_learnt_from() -> None:
    """By one a device took a tenth of what it takes alone: then all computed for the whole step."""
    known = knowledge()
    split = planned(64, 32)
    alone_s = [known.alone_s(device, split.split) for device in range(2)]
    for second_s in (alone_s[1], 0.1 * alone_s[1], 0.01 * alone_s[1], alone_s[1]):
        told = measurement_of((64, 32), [alone_s[0], second_s])
        step_s = 2 * alone_s[0]
        taken = inside(told, "step_time_s", median=step_s, samples=(step_s,))
        known.learn(split, taken)
        assert list(known.changed()) == []
    assert known.problem.sync.of({0, 1}) == pytest.approx(0.0, abs=1e-12)
    assert solo_gap(known, split.split, cast("Any", told)) is None
    for load, batch in zip(known.problem.loads, (64, 32), strict=True):
        assert load.compute_s(batch, batch) == pytest.approx(2 * alone_s[0])


def test_late_stamps_of_one_split_are_doubted_of_all() -> None:
    """The third device was measured before the stamp that shows it, and not with that split."""
    probe = probe_of(devices_of(QUICK, QUICK, QUICK))
    known = DeviceEstimates(probe, probe.devices, PlanRequest(accumulate=1))
    alone_s = known.alone_s(2, BatchSplit((0, 64, 64)))
    apart = measurement_of((1, 64, 64), [0.0, alone_s, alone_s], sync_s=alone_s)
    known.learn(planned(0, 64, 64), altered(apart, replicas=apart.replicas[1:]))
    assert known.problem.sync.of({1, 2}) == pytest.approx(alone_s)
    late = measurement_of((64, 64, 1), [alone_s, 0.01 * alone_s, 0.0])
    known.learn(planned(64, 64, 0), altered(late, replicas=late.replicas[:2]))
    assert known.stamps_are_late
    assert known.problem.sync.of({1, 2}) == pytest.approx(0.0, abs=1e-12)
    third = known.problem.loads[2]
    assert third.compute_s(64, 64) == pytest.approx(2 * alone_s)


def test_near_sizes_count_more_where_joint_times_depend_on_the_batch() -> None:
    """By hand: 64 is an octave from 32 and two from 256, whose weights are 1 and 1/4."""
    assert _factor_at(64, {32: 1.5, 256: 1.0}) == pytest.approx((1.5 + 0.25) / 1.25)
    assert _factor_at(64, {32: 1.1, 256: 1.0}) == pytest.approx(1.05)  # by chance
    assert _factor_at(32, {32: 1.5, 256: 1.0}) == 1.5
