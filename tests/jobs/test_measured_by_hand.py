"""From timings to figures: step times, waits, slow steps, what is left of a window, and limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpubalance.jobs.measure import figures
from gpubalance.jobs.measure.out_of_memory import limits_by, lines_through
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.warnings import of_figures
from gpubalance.jobs.measure.window import (
    Sensors,
    SimultaneousWindows,
    Window,
    Workload,
    largest,
)
from gpubalance.jobs.measure.workload_runner import (
    WarmUp,
    WorkloadRunner,
    step_s_of,
    steps_per_timing,
    train_until_ready,
    train_until_settled,
    trained_before,
)
from gpubalance.jobs.probe.devices import phase_names, queues, stand_ins
from gpubalance.numbers.stats import half_width, interval95
from gpubalance.results.run import SlowSteps
from gpubalance.results.timing import Prefetched, Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.requests import ProbeRequest
from gpubalance.workers.messages import Measured, Pipe, PrefetchedAll, Pull
from tests.jobs.drawn import measured, windows_of
from tests.jobs.probes import MIB, QUICK, SMALL, devices_of
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known


def timing(seconds: float, steps: int = 1, wait_s: float = 0.0, **more: Any) -> Timing:
    return Timing(steps=steps, seconds=seconds, input_wait_s=wait_s, **more)


def stamped(
    compute_s: float, update_s: float, step_s: float, wait_s: float = 0.0
) -> Timing:
    """A stamped step of two devices, of which the second computes half as long."""
    parts: Any = {"compute_s": (compute_s, compute_s / 2), "update_s": (update_s,) * 2}
    return timing(step_s, wait_s=wait_s, step_s=step_s, **parts)


def window(
    timings: list[Timing], stamped: Sequence[Timing] = (), **more: Any
) -> Window:
    return windows_of(timings, stamped, **more)[0]


def test_figures_of_two_windows_by_hand() -> None:
    first = window(
        [timing(0.4, 4, 0.04, ended_s=10.4), timing(0.5, 4, 0.2, ended_s=10.9)],
        [stamped(0.07, 0.01, 0.1)],
        memory_peak_bytes=(5, None),
        throttled=(("thermal",), ()),
        late_part=0.2,
    )
    second = window(
        [timing(0.6, 4, 0.08, ended_s=20.0)],
        memory_peak_bytes=(3, 7),
        throttled=(("power brake", "thermal"), ()),
        late_part=0.4,
    )
    both = [first, second]
    assert figures.step_times_s(both) == pytest.approx([0.1, 0.125, 0.15])
    assert figures.median_step_s(both) == pytest.approx(0.125)
    assert figures.input_wait_s(both) == pytest.approx(0.02)
    assert figures.step_count(both) == 13
    assert figures.late_part(both) == pytest.approx(0.3)
    assert figures.late_part([]) == 0.0
    assert figures.peaks(both) == (5, 7)
    assert figures.throttled(both) == [("thermal", "power brake"), ()]
    pair = devices_of(QUICK, QUICK)
    assert figures.throttled_gpus(pair, both) == [(pair[0], ("thermal", "power brake"))]
    timings = [timing(0.4, 4, ended_s=10.4), timing(0.9, 4, ended_s=11.3)]
    only_timings = [window(timings)]
    assert figures.began_s(only_timings) == pytest.approx(10.0)
    step_time = figures.step_time(only_timings, 9.5)
    assert step_time.samples == pytest.approx((0.1, 0.225))
    assert step_time.at_s == pytest.approx((0.9, 1.8))
    assert (step_time.median, step_time.mad) == pytest.approx((0.1625, 0.0625))
    assert step_time.steps_per_sample == 4
    assert figures.precision(only_timings) == math.inf
    times = figures.step_times_s(both)
    assert figures.precision(both) == known(half_width(times))


def test_a_timing_has_as_many_steps_as_take_its_time() -> None:
    steps = [steps_per_timing(0.5, step_s) for step_s in (0.1, 0.13, 2.0, 0.0)]
    assert steps == [5, 4, 1, 1]
    assert steps_per_timing(0.5, WarmUp().step_s) == 1  # unknown
    assert step_s_of(timing(0.6, 3)) == pytest.approx(0.2)
    assert step_s_of(timing(0.6, wait_s=0.1, step_s=0.25)) == 0.25


def test_late_stamps_do_not_make_timings_of_many_steps() -> None:
    """A window of a large batch took 38 s in place of 10: of stamps that came late, each step took 0.3 ms."""
    on_time = stamped(0.7, 0.01, 0.8)
    assert step_s_of(on_time) == 0.8
    late = timing(1.6, step_s=0.0003, compute_s=(0.0002,), update_s=(0.0001,))
    assert step_s_of(late) == 0.8  # two steps in 1.6 s


def test_a_stamped_step_may_have_begun_first() -> None:
    early = altered(stamped(0.1, 0.0, 0.25), ended_s=5.0)
    late = timing(1.0, ended_s=8.0)
    assert figures.began_s([window([late], [early])]) == pytest.approx(4.75)
    assert window([late], [early]).span_s == pytest.approx((4.75, 8.0))
    later = window([timing(1.0, ended_s=9.0)])
    turn = SimultaneousWindows(windows=(window([late]), later))
    assert turn.span_s == pytest.approx((7.0, 9.0))
    moved = turn.later(1.5)
    assert moved.span_s == pytest.approx((8.5, 10.5))
    assert window([late], [early]).later(2.0).span_s == pytest.approx((6.75, 10.0))


def test_a_throughput_has_the_intervals_ends_swapped() -> None:
    times_s = [0.1, 0.11, 0.105, 0.1, 0.102]
    low_s, high_s = known(interval95(times_s))
    throughput = figures.throughput_of(40, times_s)
    assert throughput.median == pytest.approx(40 / 0.102)
    assert throughput.ci95 == pytest.approx((40 / high_s, 40 / low_s))
    assert figures.throughput_of(40, times_s[:2]).ci95 is None


def test_a_mean_is_over_the_median_where_that_is_no_chance() -> None:
    usual = [timing(0.1 + 0.0001 * (n % 2)) for n in range(20)]
    high = known(interval95([one.seconds for one in usual]))[1]
    slow = [*usual, timing(1.0)]
    times = [one.seconds for one in slow]
    assert float(np.mean(times)) > 1.01 * high
    part = figures.mean_over_median([window(slow)])
    assert part == pytest.approx(float(np.mean(times) / np.median(times)) - 1)
    assert figures.mean_over_median([window([*usual, timing(0.12)])]) == 0.0
    assert figures.mean_over_median([window(usual)]) == 0.0
    assert figures.mean_over_median([window(slow[-2:])]) == 0.0
    unlike = [altered(one, shapes_differ=True) for one in slow]
    assert figures.mean_over_median([window(unlike)]) == 0.0
    assert figures.loss_is_finite([window(usual)])
    lost = altered(usual[0], loss_is_finite=False)
    assert not figures.loss_is_finite([window([*usual, lost])])


def test_a_measurement_by_hand() -> None:
    """A step of 0.2 s: 0.1 + 0.02 for the slower device, 0.01 for data, and the rest is sync."""
    steps = [stamped(0.1, 0.02, 0.18, wait_s=0.01) for _ in range(5)]
    one = measured([window([timing(0.8, 4, 0.04) for _ in range(5)], steps)])
    first, second = one.replicas
    assert one.step_time_s.median == pytest.approx(0.2)
    assert one.input_wait_s == pytest.approx(0.01)
    assert one.sync_s == pytest.approx(0.2 - 0.01 - 0.12)
    assert (one.slow_s, one.excess_s) == (0.0, 0.0)
    assert (first.wait_s, second.wait_s) == pytest.approx((0.0, 0.05))
    assert first.utilisation == pytest.approx(0.5)
    assert second.utilisation == pytest.approx(0.25)
    assert first.throughput == pytest.approx(20.0)
    assert one.throughput.median == pytest.approx(40.0)
    assert one.imbalance == pytest.approx(0.12 / 0.095)
    assert one.global_batch == 8


def test_what_a_stamped_step_takes_longer_is_no_wait() -> None:
    """A usual step takes 0.2 s. The stamped ones take 0.19 and wait 0.03: 0.02 of that count."""
    steps = [stamped(0.1, 0.0, 0.19, wait_s=0.03) for _ in range(3)]
    usual = [timing(0.2, wait_s=0.02) for _ in range(3)]
    windows = [window(usual, steps)]
    assert figures.input_waits_s(windows) == pytest.approx([0.01] * 3)
    assert figures.single_steps_s(windows) == pytest.approx([0.2] * 3)
    fast = [stamped(0.1, 0.0, 0.15, wait_s=0.03) for _ in range(3)]
    assert figures.input_waits_s([window(usual, fast)]) == pytest.approx([0.03] * 3)
    slow = [stamped(0.1, 0.0, 0.3, wait_s=0.03) for _ in range(3)]
    assert figures.input_waits_s([window(usual, slow)]) == [0.0] * 3


def test_data_that_seldom_comes_late() -> None:
    """Timings wait 0.04 s a step more than the median stamped one, of which 0.03 lengthen it."""
    steps = [stamped(0.1, 0.0, 0.17) for _ in range(3)]
    usual = [timing(0.2, wait_s=0.04) for _ in range(3)]
    assert figures.rare_waits_s([window(usual, steps)]) == pytest.approx(0.03)
    less = [timing(0.2, wait_s=0.01) for _ in range(3)]
    assert figures.rare_waits_s([window(less, steps)]) == pytest.approx(0.01)
    none = [timing(0.16, wait_s=0.04) for _ in range(3)]
    assert figures.rare_waits_s([window(none, steps)]) == 0.0
    unlike = [altered(one, shapes_differ=True) for one in usual]
    assert figures.rare_waits_s([window(unlike, steps)]) == 0.0
    # Without these waits no step is slow, and stamping costs nothing.
    assert figures.slow_s([window(usual, steps)]) == 0.0
    assert figures.stamp_cost([window(usual, steps)]) == pytest.approx(0.0)


def test_slow_steps_and_what_stamping_costs() -> None:
    steps = [stamped(0.1, 0.0, 0.11) for _ in range(4)] + [stamped(0.1, 0.0, 0.5)]
    usual = [timing(0.24, 2) for _ in range(3)]
    windows = [window(usual, steps)]
    assert figures.slow_steps_in(windows) == SlowSteps(count=1, timed=5)
    assert figures.slow_s(windows) == pytest.approx(0.01)
    assert figures.stamp_cost(windows) == pytest.approx(0.0)
    one = measured(windows)
    assert one.slow_steps == SlowSteps(count=1, timed=5)
    assert (one.slow_s, one.sync_s) == pytest.approx((0.01, 0.12 - 0.01 - 0.1))
    even = [window([timing(0.10)] * 3, steps[:4])]
    assert figures.stamp_cost(even) == pytest.approx(0.1)
    assert "stamps-cost" in [one.code for one in of_figures(SMALL, (), [even])]
    assert figures.stamp_cost([window(usual)]) is None
    assert figures.step_spread(windows) is None


def test_late_data_makes_a_slow_step_and_a_few_long_timings_are_told() -> None:
    """Data comes every 0.13 s, once after 0.52 s; one timing of six takes twice as long."""
    usual = [timing(0.65, 5, 0.65)] * 6
    steps = [stamped(0.1, 0.0, 0.1, wait_s) for wait_s in (0.52, *[0.13] * 9)]
    assert figures.slow_step_count([window(usual, steps)]) == 1
    slow = [window([timing(1.3, 5, 0.65), *usual[1:]], steps[1:])]
    assert figures.mean_over_median(slow) == pytest.approx(1 / 6)
    (told,) = [one for one in of_figures(SMALL, (), [slow]) if one.code == "slow-steps"]
    assert "on average a step takes 16.7 % longer than shown" in told.message


def test_parts_that_exceed_a_step_by_more_than_3_percent_are_told() -> None:
    for excess_part, codes in ((0.029, []), (0.031, ["parts-exceed-step"])):
        warned = of_figures(SMALL, (), [], excess_part=excess_part)
        assert [one.code for one in warned] == codes


def test_batches_that_differ_in_shape_have_means_and_a_spread() -> None:
    steps_s = (0.1, 0.2, 0.3, 0.6)
    steps = [altered(stamped(0.1, 0.0, one_s), shapes_differ=True) for one_s in steps_s]
    usual = [timing(0.35, shapes_differ=True) for _ in range(3)]
    windows = [window(usual, steps)]
    assert figures.averaging(windows) is not figures.averaging([window([timing(0.1)])])
    spread = known(figures.step_spread(windows))
    assert spread.p50_s == pytest.approx(0.25 + 0.05)
    assert spread.p95_s == pytest.approx(np.percentile(steps_s, 95) + 0.05)
    assert spread.steps == 4
    assert figures.slow_step_count(windows) == 0
    assert figures.slow_s(windows) == 0.0
    assert figures.step_spread([window(usual, steps[:1])]) is None


def noisy(count: int, seconds: float, noise: float) -> list[Timing]:
    return [timing(seconds * (1 + noise * (n % 3 - 1))) for n in range(count)]


@cases(
    "rule, timings, is_reached",
    (StoppingRule(2.0, 10.0, 0.5, math.inf), noisy(4, 1.0, 0.0), False),  # of five
    (StoppingRule(2.0, 10.0, 0.5, math.inf), noisy(5, 1.0, 0.0), True),
    (StoppingRule(6.0, 10.0, 0.5, math.inf), noisy(5, 1.0, 0.0), False),
    (StoppingRule(5.0, 10.0, 0.5, math.inf), noisy(5, 1.0, 0.0), True),
    (StoppingRule(0.0, 10.0, 0.5, 0.01), noisy(9, 1.0, 0.05), False),
    (StoppingRule(0.0, 10.0, 0.5, 0.01), noisy(11, 1.0, 0.05), True),  # it is over
    (StoppingRule(0.0, 99.0, 0.5, 0.01), noisy(30, 1.0, 0.001), True),
    # Half of it shows that all of it would not help
    (StoppingRule(0.0, 10.0, 0.5, 0.01), noisy(6, 1.0, 0.5), True),
    (StoppingRule(0.0, 12.1, 0.5, 0.01), noisy(6, 1.0, 0.5), False),
    # ± 6.8 % by now are 5.3 % at its end
    (StoppingRule(0.0, 10.0, 0.5, 0.01), noisy(6, 1.0, 0.065), False),
    (StoppingRule(0.0, 10.0, 0.5, 0.01), noisy(6, 1.0, 0.085), True),  # 6.9 %
)
def test_when_something_was_measured_long_enough(
    rule: StoppingRule, timings: list[Timing], is_reached: bool
) -> None:
    assert rule.is_reached(timings) is is_reached


def test_no_precision_is_enough_while_a_gpu_changes() -> None:
    rising = [timing(1.0 + 0.002 * n) for n in range(20)]
    rule = StoppingRule(0.0, 99.0, 0.5, 0.05)
    assert rule.is_reached([timing(1.0)] * 20, gpu_is_changing=True)
    assert rule.is_reached(rising)
    assert not rule.is_reached(rising, gpu_is_changing=True)


def test_rules_by_what_is_measured() -> None:
    assert StoppingRule.at_most(7.0) == (0.0, 7.0, 0.2, 0.01, 5)
    free, asked = Measuring(), Measuring(duration_s=4.0)
    assert StoppingRule.of_window(free) == (0.0, 10.0, 0.2, 0.005, 5)
    assert StoppingRule.of_window(asked) == (4.0, 4.0, 0.5, math.inf, 1)
    assert StoppingRule.of_round(None) == (0.0, 3.0, 0.2, 0.005, 5)
    assert StoppingRule.of_round(3.0) == (3.0, 3.0, 0.2, math.inf, 5)
    assert StoppingRule.of_round(0.0) == (0.0, 0.0, 0.2, math.inf, 5)
    point = StoppingRule.of_point(None)
    assert point == (0.0, 12.0, 0.2, 0.01, 5)
    assert StoppingRule.of_point(6.0) == (6.0, 24.0, 0.4, 0.01, 5)
    assert point.short_check == (0.0, 1.5, 0.1, 0.01, 5)
    assert point.quick_check == pytest.approx((0.0, 1.5, 0.1 / 3 * 2, math.inf, 3))
    assert StoppingRule.of_point(6.0).short_check == (3.0, 3.0, 0.2, 0.01, 5)
    assert point.until(0.01) == point
    assert point.until(0.03) == pytest.approx((0.0, 3.0, 0.2 / 3, 0.03, 3))
    left = StoppingRule(4.0, 8.0, 0.2, 0.01).less(0.25, 1)
    assert left == (3.0, 6.0, 0.2, 0.01, 4)
    assert StoppingRule(4.0, 8.0, 0.2, 0.01).less(0.5, 4).at_least == 3
    assert StoppingRule(4.0, 8.0, 0.2, 0.01, at_least=1).less(0.5, 4).at_least == 1


class SmallWorker:
    settings = SMALL


def runner_of(*seconds: float, **more: Any) -> Any:
    """A runner whose steps take so long, in a worker that has trained another split."""
    left = iter(seconds)
    asked: list[int] = []

    def train(at_least: int, **_: Any) -> list[Timing]:
        asked.append(at_least)
        return [timing(next(left)) for _ in range(at_least)]

    worker: Any = SmallWorker()
    trained_before(worker).warm.add((BatchSplit((1, 1)), False))
    workload = Workload(BatchSplit((8, 8)), devices_of(QUICK, QUICK))
    usual = {"worker": worker, "workload": workload, "train": train, "asked": asked}
    usual |= {"losses_are_finite": True, "peaks": (), "vary_in_shape": False}
    return SimpleNamespace(**{**usual, **more})


@cases(
    "seconds, count",
    ((3.0, 2.0, 1.0, 0.96, 0.5), 4),
    ((1.0, 1.0, 0.95, 0.5), 3),
    ((1.0, 1.0, 0.94, 0.93), 4),
    ([0.9**n for n in range(99)], 30),
)
def test_a_warm_up_ends_where_no_step_is_clearly_faster(
    seconds: Sequence[float], count: int
) -> None:
    assert len(train_until_settled(runner_of(*seconds))) == count
    before = WarmUp(steps=5)
    ready = train_until_ready(runner_of(*seconds), before)
    assert (ready.steps, ready.step_s) == (5 + count, seconds[count - 1])
    pipe = Pipe(segments=(), order=(), micro_batch=4, micro_batches=2)
    cut = Workload(BatchSplit((8,), (4,)), devices_of(QUICK, QUICK), "cut", cut=pipe)
    runner = runner_of(*seconds, workload=cut)
    ready = train_until_ready(runner, before)
    assert (ready.steps, ready.step_s) == (5 + count, seconds[count - 1])
    assert train_until_ready(runner, before).steps == 5 + count  # nothing more trains


def test_a_first_warm_up_has_the_median_of_its_last_ten_steps() -> None:
    """The first of eleven steps is long, and counts no more."""
    seconds = (9.0, 0.3, 0.1, *[0.2, 0.1] * 4)
    runner = runner_of(*seconds)
    trained_before(runner.worker).warm.clear()
    ready = train_until_ready(runner, WarmUp(steps=5))
    assert (ready.steps, ready.steady) == (5 + len(seconds), True)
    assert ready.step_s == pytest.approx(0.15)
    assert trained_before(runner.worker).warm


def test_a_warm_up_that_never_settles_is_not_steady() -> None:
    runner = runner_of(*[1.01**n for n in range(300)])
    trained_before(runner.worker).warm.clear()
    assert not train_until_ready(runner, WarmUp()).steady


def test_data_that_seems_too_small_is_counted_once() -> None:
    asked: list[Any] = []
    worker: Any = SimpleNamespace(replies=lambda *words: asked.append(words) or ())  # type: ignore[func-returns-value]
    workload = Workload(BatchSplit((16,)), least_samples=16)
    runner = WorkloadRunner(worker, workload, Sensors(()))
    for samples, count in ((None, 0), (16, 0), (15, 1), (15, 1)):
        told: Any = {"memory_peak_bytes": (samples,), "late_part": None}
        runner._note(Measured(samples=samples, **told))
        assert len(asked) == count
    pull = Pull(global_batch=16, seconds=0.0)
    assert asked == [(pull, Prefetched, PrefetchedAll)]
    assert runner.peaks == (16,)


@cases("min_s, unlike, steps", (0.0, False, 2), (10.0, False, 3), (10.0, True, 14))
def test_how_many_steps_are_stamped(min_s: float, unlike: bool, steps: int) -> None:
    runner = runner_of(*[1.0] * 14, vary_in_shape=unlike, stamped=[])
    WorkloadRunner._stamp(runner, StoppingRule(min_s, 10.0, 0.2, 0.01))
    assert (runner.asked, len(runner.stamped)) == ([steps], steps)


def test_peaks_are_the_largest_that_are_known() -> None:
    assert largest((5, None, None), (), (3, 7, None)) == (5, 7, None)
    assert largest() == ()


def test_memory_lines_and_limits_by_hand() -> None:
    """64 MiB and 4 MiB a sample: 512 MiB hold 112."""
    devices = devices_of(QUICK, QUICK)
    lines = lines_through(devices, SMALL, (16, 40), ((64 + 64) * MIB, (64 + 160) * MIB))
    assert lines == [[(1, 68 * MIB), (16, 128 * MIB)], [(1, 68 * MIB), (16, 128 * MIB)]]
    assert limits_by(lines, devices) == [112, 112]
    assert lines_through(devices, SMALL, (16, 40), (None, 0)) == [[], []]
    unknown = [altered(device, memory_bytes=None) for device in devices]
    assert limits_by(lines, unknown) == [None, None]
    assert limits_by([[], lines[1]], devices) == [None, 112]


def test_in_which_order_devices_are_probed() -> None:
    other = altered(QUICK, name="other", alpha_s=0.5)
    devices = devices_of(QUICK, other, QUICK)
    asked = ProbeRequest(devices=devices, settings=SMALL)
    assert stand_ins(asked) == [0, 1, 0]
    assert queues(asked) == [[0, 1, 2]]
    assert phase_names(asked) == ["GPU:0 alone", "GPU:1 alone", "GPU:0 alone"]
    each = altered(asked, each=True)
    assert stand_ins(each) == [0, 1, 2]
    assert phase_names(each)[2] == "GPU:2 alone"
    parallel = altered(asked, parallel=True)
    assert queues(parallel) == [[0, 2], [1]]
    assert phase_names(parallel) == ["all devices at once"] * 3
