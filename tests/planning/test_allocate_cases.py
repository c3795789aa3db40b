"""Splits of known problems: what accumulates, is left out, binds, or is not possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpubalance.planning.allocate import added_fraction, allocate, as_measured
from gpubalance.planning.model import Curve, Line
from gpubalance.planning.problem import (
    Allocation,
    Load,
    NoSplitError,
    Problem,
    TooFineError,
)
from gpubalance.planning.sync import Syncs
from tests.support.cases import cases

FAST = Load(Line(0.01, 0.001, 0.0), 256)
SLOW = Load(Line(0.01, 0.004, 0.0), 256)
FLAT = Load(Curve((1, 64), (0.1, 0.1)), 64)


def problem_of(*loads: Load, sync_s: float = 0.0, **wanted: Any) -> Problem:
    return Problem(loads, sync=Syncs(otherwise_s=sync_s), **wanted)


def best_of(*loads: Load, sync_s: float = 0.0, **wanted: Any) -> Allocation:
    return allocate(problem_of(*loads, sync_s=sync_s, **wanted))


def test_a_device_that_is_not_worth_its_sync_is_left_out() -> None:
    problem = problem_of(FAST, SLOW, sync_s=0.2)
    found = allocate(problem)
    assert found.split.batches == (256, 0)
    assert found.step_time_s == found.compute_s[0]
    assert found.binds == ("memory", "sync")
    assert (added_fraction(problem, 1) or 0.0) < 0
    cheap = problem_of(FAST, SLOW, sync_s=0.001)
    assert added_fraction(cheap, 1) == pytest.approx(0.25, abs=0.02)
    assert (
        added_fraction(Problem((FAST,)), 0) is None
    )  # without the only one nothing is left
    # 320 samples in 266 ms and sync are as fast as 256 in 266 ms with 66.5 ms of it.
    for sync_s, used in ((0.066, (0, 1)), (0.067, (0,))):
        assert best_of(FAST, SLOW, sync_s=sync_s).split.used == used


def test_what_binds() -> None:
    little = replace(FAST, limit=20)
    for loads, wanted, binds in (
        ((FAST, SLOW), {"global_batch": 100}, ("speed", "speed")),
        ((little, SLOW), {"global_batch": 100}, ("memory", "speed")),
        ((little, little), {"global_batch": 40}, ("memory", "memory")),
        ((FAST, SLOW), {"multiple": 16, "global_batch": 96}, ("speed", "granularity")),
        ((FAST, SLOW), {}, ("memory", "speed")),
        ((FAST, replace(SLOW, limit=65)), {}, ("memory", "speed")),
        ((FAST,), {"max_global_batch": 8}, ("global batch",)),
        ((FLAT, FLAT), {"global_batch": 64}, ("global batch", "global batch")),
    ):
        assert best_of(*loads, **wanted).binds == binds
    # A granule more in three micro-batches is one of 40, beyond the plateau that a sample more
    # would not leave.
    curve = Curve((20, 37, 74, 85, 91), (0.0996, 0.0996, 0.547, 0.547, 0.547))
    pair = [Load(curve, 121)] * 2
    in_threes = best_of(*pair, sync_s=0.05, multiple=8, micro_batches=3)
    assert in_threes.split.micro_batches == (32, 32)
    assert in_threes.binds == ("granularity", "granularity")


def test_flat_devices_share_evenly_and_rounding_breaks_nothing() -> None:
    shared = best_of(FLAT, FLAT, FLAT, global_batch=100)
    assert shared.split.batches == (34, 33, 33)
    # α = 0, s = 0: every deadline is as good but for rounding, so it is the smallest.
    through_zero = Load(Line(0.0, 0.003, 0.0), 10_000)
    assert best_of(*[through_zero] * 4).split.batches == (1, 1, 1, 1)


def test_no_device_gets_a_batch_that_a_larger_one_outruns() -> None:
    """No device gets a batch that a larger one outruns if others can have less.

    48 samples take another algorithm than 56, and longer.
    """
    times_s = {40: 0.050, 48: 0.062, 56: 0.060, 64: 0.066}
    stepped = Load(Curve(tuple(times_s), tuple(times_s.values())), 64)
    even = Load(Line(0.0, 0.001, 0.0), 64)
    for loads, batches in (((stepped, even), (56, 48)), ((even, stepped), (48, 56))):
        found = best_of(*loads, multiple=8, global_batch=104)
        assert found.split.batches == batches
    # There is nobody else to have less.
    alone = best_of(stepped, multiple=8, global_batch=48)
    assert alone.split.batches == (48,)


@cases(
    "wanted, below, above",
    ({"global_batch": 100, "max_global_batch": 64}, 64, None),
    ({"max_global_batch": 4, "multiple": 8}, None, 8),
    ({"multiple": 300}, None, None),
    ({"global_batch": 1025, "micro_batches": 2}, 1024, None),
)
def test_what_is_not_possible_says_what_is(
    wanted: dict[str, Any], below: int | None, above: int | None
) -> None:
    with pytest.raises(NoSplitError) as error:
        best_of(FAST, SLOW, **wanted)
    assert (error.value.below, error.value.above) == (below, above)


def test_more_than_can_be_compared_is_refused() -> None:
    """A step through 0 without sync: every deadline is as good, so nothing can be left out."""
    endless = Load(Line(0.0, 1e-6, 0.0), 10**9)
    with pytest.raises(TooFineError, match="batch sizes are too many"):
        best_of(endless)
    rate = best_of(endless, max_global_batch=1000).throughput
    assert rate == pytest.approx(1e6)
    assert best_of(endless, FAST, global_batch=10**9).split.global_batch == 10**9


@cases(
    "devices, global_batch, batches",
    (2, 80, (57, 23)),  # 40/40 takes 0.23 s, 57 samples 0.22 s
    (2, 88, (57, 31)),  # 44 would take 0.228 s, between 40 and 57
    (2, 114, (57, 57)),
    (3, 120, (57, 32, 31)),
    (2, 60, (30, 30)),
)
def test_a_larger_batch_that_is_faster_is_used_with_an_exact_global_batch(
    devices: int, global_batch: int, batches: tuple[int, ...]
) -> None:
    falls = Load(Curve((10, 30, 40, 57), (0.1, 0.19, 0.23, 0.22)), 57)
    problem = problem_of(*[falls] * devices, global_batch=global_batch)
    found = as_measured(problem, allocate(problem))
    assert found.split.batches == batches
    own_s = max(falls.model.measured_s(batch) for batch in batches)
    assert found.step_time_s == pytest.approx(own_s)


@cases("limit, global_batch, batches", (57, 40, (32, 8)), (40, 48, (33, 15)))
def test_a_larger_batch_counts_only_where_the_device_can_have_it(
    limit: int, global_batch: int, batches: tuple[int, ...]
) -> None:
    """57 samples in 0.2 s say nothing of 39, which take 0.226 s, if no step has so many."""
    falls = Load(Curve((10, 30, 40, 57), (0.1, 0.19, 0.23, 0.2)), limit)
    found = best_of(
        falls, Load(Line(0.195, 0.0005, 0.0), 57), global_batch=global_batch
    )
    assert found.split.batches == batches
    assert found.compute_s[0] == pytest.approx(falls.model.measured_s(batches[0]))


def test_of_unlike_devices_any_one_may_get_the_larger_batch() -> None:
    """Only the second has room for 41 in 0.22 s; 40 take 0.23 s, and 39 take 0.226 s."""
    falls = Curve((10, 30, 40, 41), (0.1, 0.19, 0.23, 0.22))
    problem = problem_of(Load(falls, 40), Load(falls, 41), global_batch=80)
    found = as_measured(problem, allocate(problem))
    assert found.split.batches == (39, 41)
    assert found.step_time_s == pytest.approx(0.226)
