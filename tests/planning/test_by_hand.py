"""Models, curves, memory and packs: small cases by hand, and oracles written apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.curve import (
    best_of,
    knee_middles,
    knee_sizes,
    octaves,
    off_line,
    sensible_of,
    sensible_size,
    wanted_precision,
)
from gpubalance.planning.fleet import Fleet
from gpubalance.planning.memory import (
    MemoryCurve,
    _well_apart,
    forecast,
    joint_bytes,
    joint_limit,
    predict_limit,
)
from gpubalance.planning.model import (
    Curve,
    FixedCosts,
    Line,
    fit_line,
    measured_curve,
    monotone_curve,
    slower_batches,
)
from gpubalance.planning.noise import Norms, noise_scale
from gpubalance.planning.parts import (
    StepTimes,
    compute_shares,
    slow_steps,
    slow_time,
    split_step,
)
from gpubalance.planning.problem import Load
from gpubalance.planning.queue import Outlook, outlook, relative_times
from gpubalance.planning.search import Grid
from gpubalance.planning.solver import best_deadline
from gpubalance.planning.sync import MAX_PACK_BYTES, MIN_PACK_BYTES, Syncs, sizes_beside
from gpubalance.settings.batch_split import BatchSplit
from tests.planning.splits import by_set
from tests.support.cases import cases
from tests.support.known import known

TIMED = st.lists(
    st.tuples(st.integers(1, 1000), st.floats(0.001, 10)),
    min_size=1,
    max_size=8,
    unique_by=lambda point: point[0],
).map(sorted)


@given(TIMED, st.floats(0, 2000))
def test_curves_are_straight_between(
    points: list[tuple[int, float]], batch: float
) -> None:
    """Each point takes as long as the fastest of those from it on, as none may fall."""
    batches, times_s = zip(*points, strict=True)
    rising = np.minimum.accumulate(np.array(times_s)[::-1])[::-1]
    curve = Curve.through(points)
    inside = float(np.clip(batch, batches[0], batches[-1]))
    between = np.interp(inside, batches, rising)
    assert curve.step_time_s(inside) == pytest.approx(between)
    assert curve.falls == bool(np.any(times_s > rising))
    if len(points) > 1:
        slopes = np.diff(rising) / np.diff(batches)
        above = batches[-1] + 100
        last = rising[-1] + 100 * slopes[-1]
        assert curve.step_time_s(above) == pytest.approx(last)
        at_none = rising[0] - slopes[0] * batches[0]
        first = rising[0] - slopes[0] * batches[0] / 2
        if at_none < 0:
            first = rising[0] / 2
        assert curve.step_time_s(batches[0] / 2) == pytest.approx(first, abs=1e-12)


def test_a_model_may_be_shorter_by_some_seconds() -> None:
    line = Line(0.3, 0.1, 0.02).less(0.1)
    assert (line.alpha_s, line.beta_s, line.residual) == pytest.approx((0.2, 0.1, 0.02))
    assert line.pieces[0] == pytest.approx((0.0, 0.2, 0.1))
    curve = Curve((1, 2), (0.5, 0.7)).less(0.1)
    assert curve.step_times_s == pytest.approx((0.4, 0.6))


def test_a_curve_may_end_sooner_and_then_falls_less() -> None:
    curve = Curve((8, 16, 32), (0.2, 0.4, 0.3))
    shorter = curve.up_to(24)
    assert shorter.batches == (1, 8, 16, 24)
    assert shorter.step_times_s == pytest.approx((0.1125, 0.2, 0.4, 0.35))
    assert (curve.step_time_s(16), shorter.step_time_s(16)) == pytest.approx(
        (0.3, 0.35)
    )
    slow_first = Curve((8, 16, 32), (0.5, 0.4, 0.3))
    assert slow_first.up_to(8) == Curve((1, 8), (0.5, 0.5))
    assert curve.up_to(32) is curve.up_to(0) is curve
    line = Line(0.3, 0.1, 0.02)
    assert line.up_to(8) is line


def test_which_batches_are_clearly_slower_than_a_larger_one() -> None:
    """By over 1 %, and by more than both intervals; the fastest larger one is named."""
    points = [(8, 1.012, 0.0), (16, 1.0, 0.0), (32, 1.001, 0.0)]
    assert slower_batches(points) == [(8, 16)]
    assert slower_batches([(8, 1.009, 0.0), *points[1:]]) == []
    for half, slower in ((0.005, [(8, 16)]), (0.007, [])):
        assert slower_batches([(8, 1.012, half), (16, 1.0, 0.006)]) == slower
    curve = measured_curve([(8, 1.012, 0.0), (16, 1.0, 0.0)])
    assert curve.measured_s(8) == pytest.approx(1.012)
    assert curve.measured_s(12) == pytest.approx(1.006)
    assert curve.step_time_s(8) == pytest.approx(1.0)
    level = measured_curve([(8, 1.009, 0.0), (16, 1.0, 0.0)])
    assert level.measured_s(8) == pytest.approx(1.0045)


def test_a_deadline_may_be_worth_little() -> None:
    fleet = Fleet([Load(Line(0.0, 100.0, 0.0), 4)], multiple=1)

    def value(granules: Any, deadline_s: Any) -> Any:
        return granules / np.maximum(deadline_s, 100.0)

    assert best_deadline(fleet, value) == pytest.approx((100.0, 0.01))
    assert best_deadline(fleet, value, above=0.02) == (math.inf, 0.0)


def test_micro_batches_are_even_where_that_takes_no_longer() -> None:
    fleet = Fleet([Load(Line(0.0, 1.0, 0.0), 64)], micro_batches=4)
    assert np.ravel(fleet.micro_batches(np.ones(1) * 100, 200.0)).tolist() == [50, 100]


def test_of_deadlines_worth_the_same_the_shortest_is_taken() -> None:
    """Eighths of 700 s come before and after the second granule, at 200 s, and none at it."""
    fleet = Fleet([Load(Line(0.0, 100.0, 0.0), 7)], multiple=1)

    def value(granules: Any, _: Any) -> Any:
        return np.minimum(granules, 2.0)

    assert best_deadline(fleet, value) == pytest.approx((200.0, 2.0))


def test_a_line_is_fitted_with_relative_errors() -> None:
    """By NumPy's least squares with rows divided by their times."""
    points = [(8, 0.05), (16, 0.07), (64, 0.21), (128, 0.36)]
    rows = np.array([[1 / t, b / t] for b, t in points])
    (alpha, beta), *_ = np.linalg.lstsq(rows, np.ones(len(points)), rcond=None)
    line = fit_line(points)
    assert (line.alpha_s, line.beta_s) == pytest.approx((alpha, beta))
    off = max(abs(alpha + beta * b - t) / t for b, t in points)
    assert line.residual == pytest.approx(off)
    # Through the origin, and flat
    through = fit_line([(1, 0.1), (2, 0.3)])
    assert through.alpha_s == 0.0
    ratios = [10.0, 2 / 0.3]
    assert through.beta_s == pytest.approx(sum(ratios) / sum(r * r for r in ratios))
    flat = fit_line([(1, 0.3), (2, 0.1)])
    assert flat.beta_s == 0.0
    assert flat.alpha_s == pytest.approx((1 / 0.3 + 1 / 0.1) / (1 / 0.09 + 1 / 0.01))


@given(TIMED)
def test_the_monotone_curve_is_the_nearest(points: list[tuple[int, float]]) -> None:
    """By the formula of minima and maxima of means: Barlow et al., 1972."""
    times_s = [time_s for _, time_s in points]
    count = len(times_s)
    expected = []
    for place in range(count):
        ends = range(place + 1, count + 1)
        lows = []
        for first in range(place + 1):
            lows.append(min(np.mean(times_s[first:end]) for end in ends))
        expected.append(max(lows))
    assert monotone_curve(points).step_times_s == pytest.approx(expected)


@cases(
    "smallest, largest, multiple, sizes",
    (8, 64, 8, [8, 16, 32, 64]),
    (8, 80, 8, [8, 16, 32, 64, 80]),
    (8, 8, 8, [8]),
    (8, 9, 1, [8, 9]),
    (3, 5, 8, [8]),
    (20, 100, 8, [16, 32, 64, 96]),
)
def test_octaves_by_hand(
    smallest: int, largest: int, multiple: int, sizes: list[int]
) -> None:
    assert octaves(smallest, largest, multiple) == sizes


@cases(
    "points, multiple, sizes",
    ([(64, 100.0), (128, 150.0)], 1, [81, 102]),
    ([(64, 100.0), (128, 150.0)], 8, [80, 104]),
    ([(64, 100.0), (128, 108.6)], 1, []),
    ([(64, 100.0), (128, 108.8)], 1, [81, 102]),
    ([(64, 108.8), (128, 100.0)], 1, [81, 102]),
    ([(8, 30.0), (16, 50.0), (32, 98.1), (64, 100.0)], 1, [10, 13, 20, 25]),
    ([(64, 100.0), (96, 150.0)], 1, [81]),
    ([(64, 100.0), (95, 150.0)], 1, []),
    ([], 1, []),
)
def test_the_knee_by_hand(
    points: list[tuple[int, float]], multiple: int, sizes: list[int]
) -> None:
    off = {batch for batch, _ in points}
    assert knee_sizes(points[::-1], multiple, off) == sizes
    if len(points) == 2:
        for end, _ in points:
            assert knee_sizes(points, multiple, {end}) == sizes
    assert knee_sizes(points, multiple, set()) == []


@cases(
    "points, multiple, sizes",
    ([(32, 100.0), (128, 200.0), (512, 210.0)], 1, [64]),
    ([(8, 40.0), (32, 100.0), (128, 198.0), (512, 210.0)], 1, [64]),
    ([(64, 100.0), (224, 150.0)], 8, [120]),
    ([(64, 100.0), (223, 150.0)], 1, []),
)
def test_the_middles_of_wide_gaps_at_the_knee(
    points: list[tuple[int, float]], multiple: int, sizes: list[int]
) -> None:
    off = {batch for batch, _ in points}
    assert knee_middles(points, multiple, off) == sizes
    assert knee_middles(points, multiple, set()) == []


def test_what_is_off_the_line_and_how_exactly_times_are_wanted() -> None:
    line = [(8, 1.08, 0.0), (16, 1.16, 0.0), (32, 1.32, 0.0), (64, 1.64, 0.0)]
    assert off_line(line) == set()
    assert off_line(line[:3]) == {8, 16, 32}
    moved = [*line[:3], (64, 1.64 * 1.05, 0.0)]
    rows = np.array([[1 / time_s, batch / time_s] for batch, time_s, _ in moved])
    fitted, *_ = np.linalg.lstsq(rows, np.ones(4), rcond=None)
    errors = np.abs(rows @ fitted - 1)
    assert off_line(moved) == {*np.array([8, 16, 32, 64])[errors > 0.01].tolist()}
    unsure = [(batch, time_s, 0.06) for batch, time_s, _ in moved]
    assert off_line(unsure) == set()
    wanted = [wanted_precision(batch, 100) for batch in (50, 51, 100)]
    assert wanted == [0.03, 0.01, 0.01]


def test_best_and_sensible_sizes_by_hand() -> None:
    points = [(8, 60.0), (16, 90.0), (32, 95.0), (64, 100.0), (128, 100.0)]
    assert best_of(points) == (64, 100.0)
    assert sensible_of(points) == (32, 95.0)
    assert sensible_size(points, 1) is None  # just that one
    later = [(16, 75.0), (32, 115.0), (64, 120.0)]
    # 95 % of the best is 114: at 16 · 2^(39/40), above 31, and 32 was measured
    assert sensible_size(later, 1) is None
    steep = [(16, 75.0), (32, 118.0), (64, 120.0)]
    assert sensible_size(steep, 1) == math.ceil(16 * 2 ** (39 / 43)) == 31
    assert sensible_size(steep, 4) is None  # 32 was measured
    assert sensible_size([(16, 99.0), (32, 100.0)], 1) is None
    dip = [(8, 99.0), (16, 94.0), (32, 100.0), (64, 99.0)]
    assert sensible_of(dip) == (32, 100.0)


@given(st.integers(1, 40), st.integers(0, 400))
def test_rungs_are_every_batch_then_multiples(multiple: int, batch: int) -> None:
    grid = Grid(multiple)
    rungs = [0, *range(1, multiple), *range(multiple, 401, multiple)]
    below = [place for place, size in enumerate(rungs) if size <= batch]
    assert grid.rung(batch) == below[-1]
    assert grid.has(batch) == (batch in rungs)
    assert [grid.batch(rung) for rung in range(len(rungs))] == rungs


@given(
    st.integers(0, 10**6),
    st.integers(1, 10**4),
    st.integers(0, 50),
    st.integers(1, 500),
)
def test_memory_that_bends_is_followed(
    base: int, slope: int, bend: int, more: int
) -> None:
    points = [(b, base + slope * b + bend * b * b) for b in (10, 40, 100)]
    curve = known(MemoryCurve.through(points, 1 << 60))
    batch = 100 + more
    needed = base + slope * batch + bend * batch**2
    assert curve.at(batch) == needed
    assert curve.largest_within(needed) == batch
    assert curve.largest_within(needed - 1) == batch - 1


def test_memory_that_bends_downward_is_the_line_through_the_last_two() -> None:
    curve = known(MemoryCurve.through([(10, 0), (20, 100), (40, 200)], 1 << 40))
    assert [curve.slope, curve.bend, curve.gap] == [5, 0, 20]
    assert [curve.at(batch) for batch in (30, 40, 60)] == [150, 200, 300]
    assert curve.largest_within(300) == 60
    assert curve.largest_within(299) == 59
    assert curve.largest_within(150) == 30
    assert MemoryCurve.through([(10, 5)], 100) is None
    assert MemoryCurve.through([(10, 200), (40, 100)], 1 << 40) is None


@cases(
    "memory, middle",
    # 75 is a quarter below 100, and 76 is not
    (10_000, 75),
    # Where the memory has 48 left, 24 fewer are enough
    (1048, 76),
    (1049, 75),
)
def test_a_curve_goes_through_points_well_apart(memory: int, middle: int) -> None:
    points = [(10, 100), (75, 750), (76, 976), (100, 1000)]
    curve = known(MemoryCurve.through(points, memory))
    assert curve.gap == 100 - middle
    # What is left beside the largest counts, also for the third
    near = [(10, 100), (70, 946), *points[2:]]
    assert _well_apart(near, 1048) == near[:0:-1]


def test_a_forecast_by_hand() -> None:
    """It was 100 off at 40, by the line through 10 and 20, and may be as much at 60."""
    points = [(10, 100), (20, 200), (40, 500)]
    made = known(forecast(points, 2000))
    curve = known(MemoryCurve.through(points, 2000))
    assert [curve.slope, curve.bend] == [15, Fraction(5, 30)]
    assert made.best == max(b for b in range(40, 200) if curve.at(b) <= 2000)
    sure = []
    for batch in range(40, 200):
        off = 100 * max(Fraction(1, 4), Fraction(batch - 40, 20) ** 3)
        if curve.at(batch) + off <= 2000:
            sure.append(batch)
    assert made.sure == sure[-1]
    assert made.doubt == 1 + max(b for b in range(40, 200) if curve.at(b) <= 2100)
    two = known(forecast(points[:2], 2000))
    assert (two.sure, two.best, two.doubt) == (200, 200, 201)
    assert forecast(points[:1], 2000) is None
    assert predict_limit(list(reversed(points)), 2000) == 40 + 1500 // 15
    bent = [(10, 100), (20, 203), (33, 340)]  # 336.9 by the first two
    for memory in range(400, 420):
        curve = known(MemoryCurve.through(bent, memory))
        last = max(batch for batch in range(33, 99) if curve.at(batch) <= memory + 4)
        assert known(forecast(bent, memory)).doubt == last + 1


@cases(
    "fits, memory, extra, limit",
    (40, 500, 0, 40),
    (40, 500, 75, 35),
    (40, 500, 500, 6),
    (40, 500, 5000, 0),
    (5, 500, 50, 5),
    (40, None, 50, 40),
)
def test_a_joint_limit_by_hand(
    fits: int, memory: int | None, extra: int, limit: int
) -> None:
    points = [(10, 100), (20, 200), (40, 500)]
    made = joint_limit(points, fits, memory_bytes=memory, extra_bytes=extra)
    assert made == limit


def test_memory_that_does_not_rise_fits_with_what_is_added_or_not() -> None:
    flat = [(10, 310), (20, 300)]
    assert predict_limit(flat, 500) is None
    assert joint_limit([], 20, memory_bytes=500, extra_bytes=100) == 20
    for extra, limit in ((200, 20), (201, 0)):
        made = joint_limit(flat, 20, memory_bytes=500, extra_bytes=extra)
        assert made == limit
    parts = [joint_bytes(100, *of) for of in ((1, 0), (2, 0), (2, 10), (2, 50))]
    assert parts == [0, 200, 120, 200]


def test_the_interval_of_a_noise_scale_is_fiellers() -> None:
    """Its ends are where a test of mean(variance) − φ · mean(signal) = 0 just rejects."""
    steps = [Norms(100, 2, own, 1.0) for own in (0.012, 0.0124, 0.0121, 0.0119, 0.0123)]
    found = noise_scale(steps)
    variances = np.array([step.variance for step in steps])
    signals = np.array([step.signal for step in steps])
    assert found.value == pytest.approx(variances.mean() / signals.mean())
    for end in known(found.ci95):
        differences = variances - end * signals
        t = differences.mean() / (differences.std(ddof=1) / math.sqrt(5))
        assert abs(t) == pytest.approx(2.776, rel=1e-3)
    small = [Norms(100, 2, 1e-6 * one.own, 1e-6 * one.whole) for one in steps]
    assert noise_scale(small).value == pytest.approx(found.value)  # whatever the unit
    assert noise_scale(steps[:2]).unknown == "2 steps are too few"
    assert noise_scale(steps[:3]).value is not None


def test_sizes_beside_by_hand() -> None:
    mib = 1 << 20
    assert sizes_beside(4 * mib, 100 * mib) == {mib, 16 * mib}
    assert sizes_beside(16 * mib, 100 * mib) == {4 * mib, MAX_PACK_BYTES}
    assert sizes_beside(16 * mib, MAX_PACK_BYTES) == {4 * mib, 0}
    assert sizes_beside(0, 32 * mib) == {2 * mib, 8 * mib}
    assert sizes_beside(0, 1000 * mib) == {MAX_PACK_BYTES}
    assert sizes_beside(MIN_PACK_BYTES, 100 * mib) == {4 * MIN_PACK_BYTES}
    assert sizes_beside(4 * mib, 16 * mib) == {mib, 0}


def test_slow_steps_by_hand() -> None:
    assert slow_steps([]) == 0
    assert slow_steps([1.0, 1.0, 1.0, 1.5, 1.51]) == 1
    usual = [1.0, 1.0, 1.0]
    # Ten steps of a timing take 0.71 of a step longer than the shortest's
    assert slow_time([1.0, 1.071, 1.071], 10, usual) == pytest.approx(0.071)
    assert slow_time([1.0, 1.069, 1.069], 10, usual) == 0.0
    assert slow_time([0.9, 1.069, 1.069], 10, usual) == 0.0
    assert slow_time([1.1] * 3, 10, [1.0, 1.0, 1.6]) == pytest.approx(0.1)
    alone, late = [1.0, 1.0, 1.6], [0.4, 0.4, 1.6]
    assert slow_time([0.9] * 3, 10, alone) == slow_time([1.1] * 3, 1, late) == 0.0


def test_parts_of_a_step_by_hand() -> None:
    parts = split_step(2.0, [[0.5, 0.9], [0.7, 0.7]], [[0.1, 0.2], [0.1, 0.2]], 0.25)
    assert parts.compute_s == pytest.approx((0.6, 0.8))
    assert parts.update_s == pytest.approx((0.1, 0.2))
    # The slowest took 1.1 and 0.9 s
    assert parts.wait_s == pytest.approx((0.3, 0.0))
    assert parts.sync_s == pytest.approx(2.0 - 0.25 - 1.0)
    assert parts.imbalance == pytest.approx(1.0 / 0.85)
    # Another one is the slowest in each step, and the other waits
    noisy = split_step(1.3, [[1.0, 1.2], [1.2, 1.0]] * 2, [[0.0, 0.0]] * 4, 0.0)
    assert (*noisy.wait_s, noisy.sync_s) == pytest.approx((0.1, 0.1, 0.1))
    mean = split_step(2.0, [[0.5], [0.7], [1.5]], [[0.1]] * 3, 0.0, middle=max)
    assert mean.compute_s == pytest.approx((1.9,))


def step(
    split: BatchSplit, compute_s: Sequence[float], rest_s: float = 0.0
) -> StepTimes:
    return StepTimes(tuple(compute_s), (0.01, 0.02), split, 0.05, rest_s)


def test_step_times_by_hand() -> None:
    taken = ((0.3, 0.1), 0.0), ((0.6, 0.2), 0.1), ((0.2, 0.2), 0.3)
    steps = [step(BatchSplit((60, 40)), *one) for one in taken]
    of = StepTimes.median_of(steps)
    assert compute_shares(steps[0]) == pytest.approx((0.75, 0.25))
    # 0.4 s in all, of which the first has 0.75
    assert of.compute_s == pytest.approx((0.3, 0.1))
    assert of.rest_s == 0.1
    assert of.common_s == pytest.approx(0.15)
    assert of.busy_s == pytest.approx((0.31, 0.12))
    assert of.step_time_s == pytest.approx(0.46)


def test_what_a_device_takes_by_a_plan_and_without() -> None:
    now = step(BatchSplit((60, 40), (20, 40)), (0.3, 0.2))
    planned = FixedCosts([10.0, None])
    # 3 · 10 + 60 are 0.3 s
    assert planned.compute_s(now, 0, 40, 2) == pytest.approx(0.3 * 60 / 90)
    assert planned.compute_s(now, 1, 20, 1) == pytest.approx(0.1)
    assert planned.compute_s(now, 1, 60, 2) == pytest.approx(0.4)
    assert planned.compute_s(now, 1, 100, 2) == pytest.approx(0.5)
    planned.is_cautious = False
    assert planned.compute_s(now, 1, 60, 2) == pytest.approx(0.3)


@cases(
    "before_s, after_s, samples",
    # 20 samples more took 40 ms more: 2 ms each, so that 100 ms are fixed
    (0.30, 0.34, 50.0),
    # As many as they should
    (0.20, 0.24, 0.0),
    # Not even that
    (0.10, 0.14, 0.0),
    # Another speed: as a fixed cost it would be all of the step.
    (0.12, 0.1201, 0.0),
)
def test_a_fixed_cost_is_learned_from_a_change(
    before_s: float, after_s: float, samples: float
) -> None:
    costs = FixedCosts([None, None])
    old = step(BatchSplit((100, 100)), (before_s, 1.0))
    new = step(BatchSplit((120, 80)), (after_s, 0.9))
    costs.learn([old] * 5, [new] * 5)
    part = (60 + samples) / (120 + samples)
    assert costs.compute_s(new, 0, 60, 1) == pytest.approx(after_s * part)
    # The other one's 20 samples less took 100 ms less.
    assert costs.compute_s(new, 1, 60, 1) == pytest.approx(0.8)


def test_a_change_that_is_too_small_teaches_nothing_and_a_plan_is_kept() -> None:
    costs = FixedCosts([None, None])
    old = step(BatchSplit((100, 100)), (0.30, 0.30))
    new = step(BatchSplit((105, 95)), (0.31, 0.29))
    costs.learn([old] * 5, [new] * 5)
    assert costs.compute_s(new, 0, 0, 1) == 0.0
    new = step(BatchSplit((106, 94)), (0.312, 0.288))
    costs.learn([old] * 5, [new] * 5)
    assert costs.compute_s(new, 0, 0, 1) == pytest.approx(0.1)  # of 50 samples
    planned = FixedCosts([50.0, 50.0])
    new = step(BatchSplit((120, 80)), (0.34 * 1.04, 0.26))
    planned.learn([old] * 5, [new] * 5)
    assert planned.compute_s(new, 0, 0, 1) == pytest.approx(0.34 * 1.04 * 50 / 170)


def test_when_a_sum_may_tell_more() -> None:
    syncs = Syncs(by_set(abc=0.2), sums_s=by_set(abc=0.3))
    assert syncs.sum_may_be_faster({0, 1})
    assert syncs.sums_can_show_more({0, 1})
    slow = Syncs(by_set(abc=0.2), sums_s=by_set(abc=0.3, ab=0.283))
    assert not slow.sum_may_be_faster({0, 1})
    assert not slow.sums_can_show_more({0, 1})
    fast = Syncs(by_set(abc=0.2), sums_s=by_set(abc=0.3, ab=0.282))
    assert fast.sum_may_be_faster({0, 1})
    assert not fast.sums_can_show_more({0, 1})  # it was timed
    assert not Syncs().sums_can_show_more({0, 1})
    assert Syncs(by_set(abc=0.2)).sums_can_show_more({0, 1})
    shorter = Syncs(by_set(abc=0.2, abd=0.1))
    assert shorter.smallest_measured_superset({0, 1}) == {0, 1, 3}
    assert shorter.longest_s == 0.2
    assert shorter.of({0}) == 0.0


def test_who_starts_the_next_command() -> None:
    known_times = Outlook((0.0, 0.0), (1.0, 3.0))
    assert known_times.starts((0, 1), 0) is None
    assert known_times.starts((0, 1), 1) == 0
    assert known_times.starts((1,), 2) is None  # the fast one does both in 2 s
    assert known_times.starts((1,), 3) == 1
    assert Outlook((0.0, 0.0), (1.0, None)).starts((1,), 1) == 1
    assert Outlook((0.0,), (None,)).last_s(3) == 0.0


def test_times_are_drawn_to_what_was_known() -> None:
    assert relative_times([[], []]) == (None, None)
    assert relative_times([[], []], [100.0, 50.0]) == pytest.approx((0.01, 0.02))
    # Without a probe: doubt 0.25; one command each varies by 0.16.
    first, second = relative_times([[1.0], [4.0]])
    part = 0.25 / (0.25 + 0.16)
    assert known(second) / known(first) == pytest.approx(4.0**part)
    assert known(first) * known(second) == pytest.approx(4.0)
    three = relative_times([[1.0], [4.0], [8.0]])  # drawn to the mean of 0, 2 and 3
    powers = [5 / 3 + part * (power - 5 / 3) for power in (0, 2, 3)]
    assert three == pytest.approx([2.0**power for power in powers])
    twice = relative_times([[1.0, 1.0], [4.0, 4.0]])
    variance = 2 * 0.16 / 4  # two more are seen, which do not vary
    part = 0.25 / (0.25 + variance / 2)
    assert known(twice[1]) / known(twice[0]) == pytest.approx(4.0**part)
    _, second = relative_times([[1.0, 4.0], [8.0]])  # two are ln 2 off their median
    part = 0.25 / (0.25 + (2 * math.log(2) ** 2 + 2 * 0.16) / 3)
    assert known(second) == pytest.approx(4 * 2.0**part)  # drawn to the mean of 1 and 3
    probed = relative_times([[1.0], [4.0], []], [100.0, 100.0, 50.0])
    part = 0.04 / (0.04 + 0.16)
    assert known(probed[1]) / known(probed[0]) == pytest.approx(4.0**part)
    assert known(probed[2]) == pytest.approx(2 * 2.0)


def test_what_to_expect_of_a_command_that_runs() -> None:
    found = outlook([[2.0, 4.0], []], [1.0, None], [1.0, 2.0])
    assert found.each_s == pytest.approx((3.0, 6.0))
    assert found.free_s == pytest.approx((2.0, 0.0))  # 1 and 3 are left
    late = outlook([[2.0, 4.0], []], [3.0, None], [1.0, 2.0])
    assert late.free_s == pytest.approx((1.0, 0.0))  # only those of 4 s took longer
    very_late = outlook([[2.0, 4.0], []], [6.0, None], [1.0, 2.0])
    assert very_late.free_s == pytest.approx((2.0, 0.0))  # a third of 6
    nothing = outlook([[], []], [5.0, 2.0], [1.5, None])
    assert nothing.free_s == pytest.approx((1.5, 0.0))
    assert nothing.each_s == [1.5, None]
