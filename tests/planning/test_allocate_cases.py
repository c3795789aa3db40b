"""Splits of known problems: what accumulates, is left out, binds, or is not possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpubalance.planning.allocate import added_fraction, allocate
from gpubalance.planning.model import Curve, Line
from gpubalance.planning.problem import Load, NoSplitError, Problem, TooFineError
from gpubalance.planning.sync import Syncs
from tests.planning.splits import assert_split
from tests.support.cases import cases

FAST = Load(Line(0.01, 0.001, 0.0), 256)
SLOW = Load(Line(0.01, 0.004, 0.0), 256)


def test_accumulation_only_where_it_pays() -> None:
    alike = allocate(
        Problem(
            (FAST, FAST),
            sync=Syncs(otherwise_s=0.001),
            micro_batches=8,
            micro_batch_tolerance=0.05,
        )
    )
    assert alike.split.batches == alike.split.micro_batches == (256, 256)
    dear = allocate(
        Problem(
            (FAST, FAST),
            sync=Syncs(otherwise_s=0.1),
            micro_batches=8,
            micro_batch_tolerance=0.05,
        )
    )
    assert dear.split.global_batch > 512
    assert dear.split.micro_batches == (256, 256)
    # Memory holds back the fast one: it does its micro-batches while the slow one does one.
    small = allocate(Problem((replace(FAST, limit=64), SLOW), micro_batches=8))
    assert small.split.batches[0] > 64 >= small.split.micro_batches[0]
    assert small.split.micro_batches[1] == small.split.batches[1]


def test_a_device_that_is_not_worth_its_sync_is_left_out() -> None:
    problem = Problem((FAST, SLOW), sync=Syncs(otherwise_s=0.2))
    found = allocate(problem)
    assert found.split.batches == (256, 0)
    assert found.step_time_s == found.compute_s[0]
    assert found.binds == ("memory", "sync")
    assert (added_fraction(problem, 1) or 0.0) < 0
    assert added_fraction(
        replace(problem, sync=Syncs(otherwise_s=0.001)), 1
    ) == pytest.approx(0.25, abs=0.02)
    # Without the only one nothing is left
    assert added_fraction(Problem((FAST,)), 0) is None


def test_the_update_is_charged_to_one_device_alone_as_to_several() -> None:
    """320 samples in 334 ms are a higher rate than 256 in 274 ms.

    They are a lower one than 256 in the 266 ms without an update.
    """
    updating = Problem(
        tuple(replace(load, update_s=0.008) for load in (FAST, SLOW)),
        sync=Syncs(otherwise_s=0.06),
    )
    found = allocate(updating)
    assert found.split.batches == (256, 64)
    assert found.compute_s == pytest.approx((0.266, 0.266))
    assert found.step_time_s == pytest.approx(0.266 + 0.008 + 0.06)
    alone = allocate(replace(updating, loads=updating.loads[:1]))
    assert alone.step_time_s == pytest.approx(0.266 + 0.008)


def test_micro_batches_pay_their_fixed_cost_each_and_one_update() -> None:
    found = allocate(
        Problem((replace(FAST, update_s=0.1),), global_batch=1024, micro_batches=4)
    )
    assert found.split.micro_batches == (256,)
    assert found.step_time_s == pytest.approx(4 * (0.01 + 0.256) + 0.1)


def test_what_binds() -> None:
    both = (FAST, SLOW)
    assert allocate(Problem(both, global_batch=100)).binds == ("speed", "speed")
    assert allocate(
        Problem((replace(FAST, limit=20), SLOW), global_batch=100)
    ).binds == ("memory", "speed")
    assert allocate(Problem(both, multiple=16, global_batch=96)).binds == (
        "speed",
        "granularity",
    )
    assert allocate(Problem(both)).binds == ("memory", "speed")
    assert allocate(Problem(both[:1], max_global_batch=8)).binds == ("global batch",)
    flat = Load(Curve((1, 64), (0.1, 0.1)), 64)
    assert allocate(Problem((flat, flat), global_batch=64)).binds == (
        "global batch",
        "global batch",
    )
    # A granule more in three micro-batches is one of 40, beyond the plateau that a sample more
    # would not leave.
    plateaus = Load(
        Curve((20, 37, 74, 85, 91), (0.0996, 0.0996, 0.547, 0.547, 0.547)), 121
    )
    in_threes = allocate(
        Problem(
            (plateaus, plateaus),
            sync=Syncs(otherwise_s=0.05),
            multiple=8,
            micro_batches=3,
        )
    )
    assert in_threes.split.micro_batches == (32, 32)
    assert in_threes.binds == ("granularity", "granularity")


def test_flat_devices_share_evenly_and_rounding_breaks_nothing() -> None:
    flat = Load(Curve((1, 64), (0.1, 0.1)), 64)
    assert allocate(Problem((flat,) * 3, global_batch=100)).split.batches == (
        34,
        33,
        33,
    )
    # α = 0, s = 0: every deadline is as good but for rounding, so it is the smallest.
    through_zero = Load(Line(0.0, 0.003, 0.0), 10_000)
    assert allocate(Problem((through_zero,) * 4)).split.batches == (1, 1, 1, 1)


def test_a_curve_is_never_below_zero_before_its_first_point() -> None:
    steep = Load(Curve((8, 16), (0.1, 1.0)), 16)
    assert steep.model.step_time_s(1) == pytest.approx(0.1 / 8)
    found = allocate(Problem((steep,)))
    assert found.throughput == pytest.approx(80)
    assert_split(Problem((steep,)), found)


def test_no_device_gets_a_batch_that_a_larger_one_outruns() -> None:
    """No device gets a batch that a larger one outruns if others can have less.

    48 samples take another algorithm than 56, and longer.
    """
    times_s = {40: 0.050, 48: 0.062, 56: 0.060, 64: 0.066}
    stepped = Load(Curve(tuple(times_s), tuple(times_s.values())), 64)
    even = Load(Line(0.0, 0.001, 0.0), 64)
    for loads, batches in (((stepped, even), (56, 48)), ((even, stepped), (48, 56))):
        found = allocate(Problem(loads, multiple=8, global_batch=104))
        assert found.split.batches == batches
    # There is nobody else to have less.
    alone = allocate(Problem((stepped,), multiple=8, global_batch=48))
    assert alone.split.batches == (48,)


@cases(
    "wanted, below, above",
    ({"global_batch": 600}, 512, None),
    ({"global_batch": 4, "multiple": 8}, None, 8),
    ({"global_batch": 100, "multiple": 8}, 96, 104),
    ({"global_batch": 100, "max_global_batch": 64}, 64, None),
    ({"max_global_batch": 4, "multiple": 8}, None, 8),
    ({"multiple": 300}, None, None),
    ({"global_batch": 1025, "micro_batches": 2}, 1024, None),
)
def test_what_is_not_possible_says_what_is(
    wanted: dict[str, Any], below: int | None, above: int | None
) -> None:
    with pytest.raises(NoSplitError) as error:
        allocate(Problem((FAST, SLOW), **wanted))
    assert (error.value.below, error.value.above) == (below, above)


def test_more_than_can_be_compared_is_refused() -> None:
    """A step through 0 without sync: every deadline is as good, so nothing can be left out."""
    endless = Load(Line(0.0, 1e-6, 0.0), 10**9)
    with pytest.raises(TooFineError, match="batch sizes are too many"):
        allocate(Problem((endless,)))
    assert allocate(
        Problem((endless,), max_global_batch=1000)
    ).throughput == pytest.approx(1e6)
    seen = allocate(Problem((endless, FAST), global_batch=10**9)).split.global_batch
    assert seen == 10**9
