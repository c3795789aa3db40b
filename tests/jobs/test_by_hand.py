"""Rates of an input pipeline, machines that are too slow for a profile, and what a probe still takes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpubalance.errors import BadInput, OutOfMemory
from gpubalance.jobs.balance.joint_workers import JointWorkers
from gpubalance.jobs.events import TimeLeft
from gpubalance.jobs.measure.input_pipeline import held_against, measure_input_pipeline
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.warnings import FIRST, resumed, too_slow, too_slow_windows
from gpubalance.jobs.measure.window import Workload
from gpubalance.jobs.probe.attempts import Attempts
from gpubalance.jobs.probe.curve import Work
from gpubalance.jobs.probe.limit import Explored, _long_s, _why_max, explore, plateau_of
from gpubalance.jobs.probe.probe_worker import ProbeWorker
from gpubalance.jobs.probe.probed_device import device_probe, taken_over
from gpubalance.jobs.probe.result import nothing_fits, probe_warnings
from gpubalance.jobs.probe.time_left import QueuesLeft, curve_left_s, planned_step_s
from gpubalance.planning.curve import wanted_precision
from gpubalance.planning.search import ASKED_FOR, Limit
from gpubalance.results.common import Refusal, Throughput, Warning_
from gpubalance.results.probe import CurvePoint, SoloRate, Trial
from gpubalance.results.run import InputPipeline
from gpubalance.results.timing import Overhead, Prefetched, Remedy, Telemetry, Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import JointProfile
from gpubalance.settings.requests import BalanceRequest, ProbeRequest
from gpubalance.settings.settings import Settings
from gpubalance.system.deadlines import NO_LIMIT
from gpubalance.workers.messages import PrefetchedAll, Pull
from tests.jobs.drawn import nothing_kept, quiet, ready, windows_of
from tests.jobs.probes import (
    MIB,
    QUICK,
    SMALL,
    devices_of,
    exact_point,
    inside,
    point_of,
)
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known

FAST = Remedy(where="data.py:3", what="prefetch")


def prefetched(*rounds: tuple[float, ...]) -> tuple[InputPipeline, list[Pull]]:
    """What is measured of rounds of pulls of two batches in so many seconds, and what is asked."""
    asked: list[Pull] = []

    def replies(pull: Pull, *_: object) -> Iterator[Any]:
        asked.append(pull)
        if len(asked) > 1:  # after the warm-up
            for seconds in rounds[len(asked) - 2]:
                yield Prefetched(batches=2, seconds=seconds, cpu_s=seconds / 2)
        yield PrefetchedAll(remedies=(FAST,), joined_from=7)

    worker = SimpleNamespace(replies=replies)
    worker_group: Any = SimpleNamespace(worker=lambda: nullcontext(worker))
    return measure_input_pipeline(worker_group, 100, quiet), asked


def test_a_pipeline_is_measured_until_its_rate_is_known() -> None:
    found, asked = prefetched((0.5,) * 5)
    assert found.alone.median == pytest.approx(400)
    assert found.processor_use == pytest.approx(0.5 / (os.cpu_count() or 1))
    assert (found.held, found.binds) == (None, False)
    assert (found.remedies, found.joined_from) == ((FAST,), 7)
    assert [(pull.seconds, pull.at_least) for pull in asked] == [(2.0, 1), (2.0, 5)]
    assert {pull.global_batch for pull in asked} == {100}
    found, asked = prefetched((0.5, 0.6), (0.5, 0.4, 0.5), (0.5,) * 90)
    assert [pull.at_least for pull in asked[1:]] == [5, 3, 1]
    assert found.alone.median == pytest.approx(400)
    _, asked = prefetched(*[(0.3, 0.9)] * 9)
    assert len(asked) == 6  # with the warm-up


@cases(
    "held, solo, binds",
    (None, None, False),
    (403.0, None, False),  # within its interval
    (407.0, None, False),  # by less than 2 %
    (409.0, None, True),
    (None, 409.0, True),
    (300.0, 409.0, True),
)
def test_a_pipeline_binds_where_it_clearly_gives_less(
    held: float | None, solo: float | None, binds: bool
) -> None:
    alone = Throughput(median=400.0, ci95=(396.0, 404.0))
    usual: Any = {"processor_use": 0.5, "held": None, "binds": False}
    found = InputPipeline(alone=alone, remedies=(FAST,), **usual)
    told = Throughput(median=held, ci95=None) if held else None
    record = held_against(found, told, solo)
    assert (record.binds, record.held) == (binds, told)
    assert record.remedies == ((FAST,) if binds else ())
    wide = altered(found, alone=Throughput(median=400.0, ci95=(300.0, 500.0)))
    assert not held_against(wide, told, solo).binds


# 20 and 35 ms of compute; with contention 30 and 52.5 ms, an update of 5 ms and sync of 2.5 ms
SLOWER = altered(QUICK, alpha_s=0.015, update_s=0.005, xla_factor=0.5)
PAIR = devices_of(QUICK, SLOWER)
JOINT = JointProfile(contention=1.5, sync_s=0.0025)
SPLIT = BatchSplit((50, 100))


@cases(
    "step_ms, more, times",
    (91.0, {}, "1.52"),
    (89.0, {}, None),  # up to 1.5 times as long
    (67.0, {"allowed": FIRST}, "1.12"),
    (65.0, {"allowed": FIRST}, None),
    (91.0, {"late_part": 0.5}, None),  # not of most steps
    # Half of the second device's compute: 26.25 and 5 ms, and the first one's 30 ms
    (56.0, {"settings": altered(SMALL, xla=True)}, "1.66"),
    (91.0, {"devices": (PAIR[0], altered(PAIR[1], profile=None))}, None),
    (91.0, {"devices": [altered(d, host=d.name + str(d.index)) for d in PAIR]}, None),
    # Alone: no contention and no sync
    (41.0, {"devices": PAIR[1:], "split": BatchSplit((100,))}, None),
    (61.0, {"devices": PAIR[1:], "split": BatchSplit((100,))}, "1.52"),
    ids=str,
)
def test_a_machine_is_too_slow_by_the_profile(
    step_ms: float, more: dict[str, Any], times: str | None
) -> None:
    usual = {"devices": PAIR, "split": SPLIT, "settings": SMALL, "joint": JOINT}
    asked = {**usual, "step_s": step_ms / 1e3, "late_part": 0.51, **more}
    fault = too_slow(**asked)
    assert (fault is not None) == (times is not None)
    if fault is not None:
        assert f"{times} times as long" in fault.message
        is_split = f"a step of the split {asked['split']} takes" in fault.message
        assert is_split == (len(asked["devices"]) > 1)
        assert "use --time-scale 4: it slows down all simulated devices" in fault.remedy


def test_a_wait_for_data_does_not_make_a_machine_slow() -> None:
    workload = Workload(SPLIT, PAIR)
    for wait_s, is_slow in ((0.0, True), (0.02, False)):
        usual = [Timing(steps=2, seconds=0.2, input_wait_s=2 * wait_s)]
        windows = windows_of(usual, late_part=0.9)
        fault = too_slow_windows(workload, windows, SMALL, JOINT)
        assert (fault is not None) == is_slow


@cases(
    "count, told",
    (
        1,
        "1 of its windows was measured before it was interrupted, after a warm-up of its",
    ),
    (
        2,
        "2 of its windows were measured before it was interrupted, after a warm-up of their",
    ),
)
def test_windows_before_an_interruption_had_their_own_warm_up(
    count: int, told: str
) -> None:
    (warned_of,) = resumed(count)
    assert warned_of.message.startswith(f"{told} own. ")


def test_how_long_the_rest_of_a_curve_takes() -> None:
    """Each point takes three steps of warm-up, and five timings of 0.2 s or of a step each."""
    rule = StoppingRule.of_point(None)
    one = [point_of(QUICK, 8, 0.1)]
    # 16, 32 and twice 40 samples of 12.5 ms each
    sizes = (16, 32, 40, 40)
    wanted_s = sum(8 * 0.0125 * size for size in sizes)
    assert curve_left_s(one, 40, rule, factor=2) == pytest.approx(wanted_s)
    two = [*one, point_of(QUICK, 16, 0.15)]
    # On a line of 50 ms and 6.25 ms a sample: 32 and twice 64
    wanted_s = sum(8 * (0.05 + 0.00625 * size) for size in (64, 64, 64))
    assert curve_left_s(two, 64, rule, factor=4) == pytest.approx(wanted_s)
    short = [point_of(QUICK, 8, 0.001), point_of(QUICK, 16, 0.002)]
    wanted_s = 2 * (3 * 0.002 + 5 * 0.2)
    assert curve_left_s(short, 16, rule, factor=2) == pytest.approx(wanted_s)
    many = inside(short[1], "step_time_s", steps_per_sample=200)
    unlike = altered(many, unlike=True)
    wanted_s = 2 * (3 * 200 * 0.002 + 5 * 200 * 0.002)
    left_s = curve_left_s([short[0], unlike], 16, rule, factor=2)
    assert left_s == pytest.approx(wanted_s)


def test_a_plan_takes_the_smallest_batch_that_is_nearly_as_fast() -> None:
    """Batches on a plateau take four times as long for 2 % more samples/s."""
    times_s = {64: 0.1, 8: 0.05, 256: 0.392}
    points = [point_of(QUICK, batch, time_s) for batch, time_s in times_s.items()]
    assert planned_step_s(points) == 0.1
    assert planned_step_s([*points, point_of(QUICK, 512, 0.7)]) == 0.7


def _left_and_step_s(told: TimeLeft) -> tuple[float, float]:
    """Those of the phase, and of a step."""
    return told.duration.least_s, told.step_s


def test_queues_at_once_end_with_the_last_device_of_the_longest() -> None:
    """Of the first queue's devices 0 and 2 are probed, of the second's only device 1."""
    now_s = 100.0
    told: list[TimeLeft] = []
    left = QueuesLeft(
        [[0, 2, 4], [1, 3]], {0, 1, 2}, cast("Any", told.append), lambda: now_s
    )
    left.begin(0)
    left.begin(1)
    now_s = 110.0
    left.report(0, 30.0, 0.5)
    assert not told  # nobody knows of the other queue
    left.report(1, 50.0, 0.25)
    # Device 0 takes 40 s in all, and device 2 about as long.
    assert _left_and_step_s(told[-1]) == pytest.approx((70.0, 0.5))
    now_s = 140.0
    left.end(0)
    left.begin(2)
    now_s = 150.0
    left.report(2, 1.0, 0.1)
    assert _left_and_step_s(told[-1]) == pytest.approx((10.0, 0.5))
    left.end(1)
    assert told[-1].duration.least_s == pytest.approx(1.0)
    count = len(told)
    left.end(2)
    assert len(told) == count  # with nothing left nothing is told
    alone = QueuesLeft([[0, 1]], {0, 1}, cast("Any", told.append), lambda: now_s)
    alone.begin(0)
    alone.report(0, 7.0, 0.1)
    assert known(told[-1]).duration.least_s == pytest.approx(7.0)
    alone.end(0)
    assert len(told) == count + 1


def trial(batch: int, outcome: Any, peak: int) -> Trial:
    told: Any = {"outcome": outcome, "memory_peak_bytes": peak}
    return Trial(batch=batch, seconds=1.0, reason="", fresh=True, **told)


def found_of(*rates: tuple[int, float], fits: int, **more: Any) -> Any:
    """What a probe has found of a device: a throughput by batch, and its limit."""
    points = {batch: point_of(QUICK, batch, batch / rate) for batch, rate in rates}
    failed = [trial(fits + 8, *of) for of in (("fits", 5), ("oom", 77))]
    probe_worker = SimpleNamespace(
        usable_bytes=50,
        margin_bytes=0,
        worker_group=SimpleNamespace(overhead=Overhead(workers=2)),
        request=ProbeRequest(devices=PAIR, settings=SMALL),
    )
    found = {
        "number": 1,
        "device": PAIR[1],
        "points": points,
        "limit": Limit(fits, fits + 8, ()),
        "attempts": SimpleNamespace(trials=failed, measured_s=4.0, skipped=[]),
        "probe_worker": probe_worker,
        "max_batch": 512,
        "plateau": None,
        "step_work": Work(step_flops=1e6, update_s=0.25),
        "errors": [],
        "with_xla": None,
        "steady": True,
        "on_line": True,
        "elapsed_s": 9.0,
        "ended": True,
    }
    return SimpleNamespace(**{**found, **more})


def test_what_a_probe_records_of_a_device() -> None:
    """A batch above the limit trained once: it is on the curve, and in nothing that follows."""
    rates = ((8, 100.0), (16, 160.0), (32, 200.0), (40, 500.0))
    record = device_probe(found_of(*rates, fits=32))
    assert [point.batch for point in record.curve] == [8, 16, 32, 40]
    assert known(record.solo_best) == SoloRate(batch=32, throughput=200.0)
    assert known(record.sensible) == SoloRate(batch=32, throughput=200.0)
    model = known(record.step_time_model)
    assert model.planned.step_time_s(32) == pytest.approx(32 / 200, rel=0.1)
    limit = known(record.batch_limit)
    assert (limit.fits, limit.fails, limit.needed_bytes) == (32, 40, 77)
    assert (record.flops_per_s, record.update_s) == (200e6, 0.25)
    assert (record.complete, record.steady, record.children) == (True, True, 2)
    few = device_probe(found_of((8, 100.0), fits=8, step_work=None))
    assert few.step_time_model is None
    assert (few.flops_per_s, few.update_s) == (None, None)
    fault = OutOfMemory("full")
    failed = device_probe(found_of(*rates, fits=32, errors=[fault, fault], ended=True))
    assert not failed.complete
    assert [one.message for one in failed.failures] == ["full"]
    other = SimpleNamespace(number=3, device=PAIR[0])
    taken = taken_over(cast("Any", other), found_of(*rates, fits=32))
    assert (taken.device, taken.same_as, taken.children) == (3, "GPU:1", 0)
    assert taken.curve == record.curve


@cases(
    "trials, limit_bytes, told",
    ([trial(1, "oom", 77 * MIB)], 50 * MIB, "it needs 77.0 MiB, and 50.0 MiB are free"),
    ([], None, "how much it needs is unknown, and an unknown number of bytes are"),
)
def test_what_a_device_lacks_that_holds_nothing(
    trials: list[Trial], limit_bytes: int | None, told: str
) -> None:
    found = found_of(fits=0)
    found.limit = Limit(None, 1, ())
    found.probe_worker.usable_bytes = limit_bytes
    found.attempts.trials = trials
    error = known(nothing_fits(found))
    assert error.message.startswith("small does not fit on GPU:1 at batch size 1: ")
    assert told in error.message
    found.probe_worker.margin_bytes = 3 << 20
    beside = known(nothing_fits(found))
    assert " beside the margin of 3.00 MiB are free" in beside.message
    assert beside.remedy.startswith("use a smaller --margin; or use a smaller model")
    found.device = altered(PAIR[1], profile=None)
    if trials:
        says = "it held 77.0 MiB when it asked for more"
        assert says in known(nothing_fits(found)).message
    found.limit = Limit(8, 16, ())
    assert nothing_fits(found) is None


def explored(
    rate_of: Callable[[int], float],
    usable_bytes: int | None = None,
    max_batch: int | None = None,
    fails: int = 10**9,
    *,
    find_limit: bool = True,
    for_split: bool = False,
    told: list[float] | None = None,
) -> tuple[list[int], Explored]:
    """The batches that are explored where each sample takes 10 bytes and all of them 100 more.

    `told` gets the time left after each batch, in steps.
    """
    told = [] if told is None else told
    asked = {"find_limit": find_limit, "for_split": for_split}
    probe_worker: Any = SimpleNamespace(
        request=SimpleNamespace(batch_multiple=8, max_batch=max_batch, **asked),
        device=PAIR[0],
        max_batch=max_batch,
        usable_bytes=usable_bytes,
        facts=ready(1),
        report_left=lambda left_s, step_s: told.append(left_s / step_s),
        get_or_make=lambda *asked: asked[-1](),
        ensure_worker=dict,
        watch=repr,
    )
    points: dict[int, CurvePoint] = {}

    def measured(batch: int, rule: object = None) -> CurvePoint:
        peak = {"memory_peak_bytes": 100 + 10 * batch}
        return altered(point_of(QUICK, batch, batch / rate_of(batch)), **peak)

    def try_batch(batch: int, reason: str, *, within: float) -> Any:
        assert (reason, within >= 0.01) == ("for the curve", True)
        if batch >= fails:
            return SimpleNamespace(trains=False)
        points[batch] = measured(batch)
        return SimpleNamespace(trains=True)

    attempts: Any = SimpleNamespace(
        probe_worker=probe_worker,
        points=points,
        measured=measured,
        try_batch=try_batch,
        precision=wanted_precision,
        rule=StoppingRule.of_point(None),
        rule_again=StoppingRule.of_point(None),
        single_steps=dict,
    )
    found = explore(attempts)
    # More than the steps of two points
    assert all(left >= 16 for left in told)
    return [*points], found


@cases(
    "how, batches, max_batch, failed",
    # Memory for 1000 samples: three batches tell that, and then each second octave is enough.
    ({"usable_bytes": 20_580}, [8, 16, 32, 128, 512], 1 << 20, None),
    ({"usable_bytes": 20_580, "fails": 512}, [8, 16, 32, 128], 1 << 20, 512),
    ({"max_batch": 100}, [8, 16, 32, 64], 100, None),
    ({"max_batch": 5}, [5], 5, None),
    # Without memory it ends on a plateau, or at 1024.
    ({}, [8, 16, 32, 64, 128, 256, 512, 1024], 1024, None),
    ({"rate_of": lambda batch: min(batch, 64)}, [8, 16, 32, 64, 128], 128, None),
    ({"fails": 64}, [8, 16, 32], 1 << 20, 64),
    ({"fails": 8}, [], 1 << 20, 8),
    ids=range(8),
)
def test_which_batches_are_explored(
    how: dict[str, Any], batches: list[int], max_batch: int, failed: int | None
) -> None:
    found = explored(**{"rate_of": float, **how})
    assert found == (batches, Explored(max_batch, failed))


def test_without_memory_the_time_left_goes_as_far_as_was_asked_for() -> None:
    told: list[float] = []
    explored(float, max_batch=8192, told=told)
    fewer_s = [before - after for before, after in itertools.pairwise(told)]
    assert min(fewer_s) > 0


def test_where_throughput_no_longer_rises_no_limit_is_looked_for() -> None:
    """From 64 samples on a step takes 15.6 ms a sample; it is a second long there."""
    roomy: dict[str, Any] = {"usable_bytes": 10**6 + 100}
    roomy["rate_of"] = lambda batch: min(batch, 64.0)
    batches = [8, 16, 32, 128, 512, 2048]
    assert explored(**roomy, find_limit=False) == (batches, Explored(2048, None, 128))
    batches += [8192, 32768]
    assert explored(**roomy) == (batches, Explored(1 << 20, None))
    # Memory predicts 3001 samples: four times 512 is too much, twice shows three octaves.
    tight = {**roomy, "usable_bytes": 30_100, "rate_of": lambda batch: min(batch, 100)}
    expected = ([8, 16, 32, 128, 512, 1024], Explored(1024, None, 128))
    assert explored(**tight, find_limit=False) == expected
    # For a split one octave that is flat is enough.
    bends = {**tight, "rate_of": lambda batch: 70 + min(batch, 512) / 10}
    assert explored(**bends, find_limit=False)[1].plateau is None
    assert explored(**bends, find_limit=False, for_split=True)[1].plateau == 512
    fast = {**roomy, "rate_of": lambda batch: min(batch, 64.0) * 1000}
    assert explored(**fast, find_limit=False)[0] == batches
    # A device that gets faster by 10 % with each point gains by each larger batch, it seems. From
    # 128 on a step takes a second: 32, measured once more, gives more.
    speeds = (64 * 1.1**n for n in itertools.count())
    roomy |= {"rate_of": lambda _: next(speeds), "find_limit": False}
    assert explored(**roomy, for_split=True)[1] == Explored(128, None, 32)


def attempts_on(hosts: int, gradient_bytes: float, *, for_split: bool) -> Any:
    """Attempts on a GPU, of a probe on so many hosts, without points yet."""
    devices = [altered(PAIR[0], host=str(n), simulated=False) for n in range(hosts)]
    asked: Any = {"find_limit": False, "max_batch": None, "for_split": for_split}
    probe_worker = SimpleNamespace(
        request=SimpleNamespace(devices=devices, **asked),
        device=devices[0],
        facts=SimpleNamespace(model=SimpleNamespace(gradient_bytes=gradient_bytes)),
    )
    return SimpleNamespace(probe_worker=probe_worker)


@cases(
    "hosts, gradient_bytes, long_s",
    (1, 1e3, 0.25),
    # A sum takes 18 ms, which are 3 % of 0.6 s.
    (1, 18e6, 0.6),
    (2, 1.8e6, 0.6),
    (1, 1e8, 1.0),
    ids=str,
)
def test_steps_are_long_where_sums_are_a_small_part_of_them(
    hosts: int, gradient_bytes: float, long_s: float
) -> None:
    attempts = attempts_on(hosts, gradient_bytes, for_split=True)
    assert _long_s(attempts) == pytest.approx(long_s)
    attempts.probe_worker.device = PAIR[0]  # simulated
    assert _long_s(attempts) == 1
    assert _long_s(attempts_on(hosts, gradient_bytes, for_split=False)) == 1


@cases("for_split, rates", (True, (132, 135)), (False, (109, 132)), ids=str)
def test_one_long_step_shows_a_plateau(
    for_split: bool, rates: tuple[float, float]
) -> None:
    """For a split by 3 % of any point, else by three octaves: of 1024, only of 64."""
    attempts = attempts_on(1, 1e8, for_split=for_split)
    rising = ((64, 0.64), (512, 512 / 130))
    attempts.points = {size: point_of(QUICK, size, step_s) for size, step_s in rising}
    for rate, plateau in zip(rates, (512, None), strict=True):
        attempts.single_steps = lambda rate=rate: {1024: 1024 / rate}
        assert plateau_of(attempts) == plateau


def probe_worker_of(
    facts: dict[str, Any], **asked: Any
) -> tuple[ProbeWorker, list[Any]]:
    """A bench whose worker group does nothing but to note what is started, and for what."""
    profile = asked.pop("profile", None)
    device = altered(PAIR[0], profile=profile)
    request = ProbeRequest(devices=(device,), settings=SMALL, **asked)
    probe_worker = ProbeWorker(
        device, request, nothing_kept(), None, NO_LIMIT, quiet, lambda *_: None
    )
    started: list[Any] = []
    worker_group: Any = SimpleNamespace(alive=False, drop=lambda: None)
    worker_group.facts = altered(ready(1), **facts)

    def start(then: Any) -> None:
        started.append(then)
        worker_group.alive = True

    worker_group.start = start
    probe_worker.worker_group = worker_group
    return probe_worker, started


def test_what_a_bench_may_use_and_what_it_loads_ahead() -> None:
    has_100 = {"memory_limit_bytes": (100,)}
    probe_worker, started = probe_worker_of(has_100, margin_bytes=30)
    assert probe_worker.usable_bytes is probe_worker.max_batch is None
    assert probe_worker.fragments_memory
    probe_worker.next_group = cast("Any", "next")
    for how in ({}, {}, {"fresh": True}, {"fresh": True, "last": True}):
        probe_worker.ensure_worker(**how)
    assert started == [probe_worker.worker_group, probe_worker.worker_group, "next"]
    assert probe_worker.usable_bytes == 70
    own = {probe_worker.device.called: 40}
    for margin, usable in ((130, 0), (own, 60)):
        other, _ = probe_worker_of(has_100, margin_bytes=margin)
        other.ensure_worker()
        assert other.usable_bytes == usable
    asked: Any = {"profile": QUICK, "max_batch": 600, "ahead": False}
    counted, started = probe_worker_of({"samples": 500}, **asked)
    counted.ensure_worker()
    assert (counted.max_batch, counted.fragments_memory, started) == (
        500,
        False,
        [None],
    )
    assert counted.usable_bytes is None
    assert _why_max(counted) == "the data has 500 samples"
    assert _why_max(probe_worker_of({}, max_batch=600)[0]) == ASKED_FOR
    odd, _ = probe_worker_of({"samples": 999}, max_batch=600, batch_multiple=64)
    odd.ensure_worker()
    assert _why_max(odd) == "the largest multiple of 64 up to the requested 600"
    unlimited = altered(QUICK, memory=None)
    assert probe_worker_of({}, profile=unlimited)[0].fragments_memory


@cases(
    "samples, asked, told",
    (7, {"batch_multiple": 8}, "has only 7 samples, and batches are multiples of 8"),
    (8, {"batch_multiple": 8}, None),
    (63, {"least_samples": 64}, "--global-batch 63 or less with --batch-multiple 1"),
    (64, {"batch_multiple": 8, "least_samples": 64}, None),
)
def test_data_that_is_too_small_is_refused(
    samples: int, asked: dict[str, Any], told: str | None
) -> None:
    probe_worker, _ = probe_worker_of({"samples": samples}, **asked)
    if told is None:
        probe_worker.ensure_worker()
        return
    with pytest.raises(BadInput) as caught:
        probe_worker.ensure_worker()
    assert f"{told}\n" in f"{caught.value}\n"


def test_a_model_of_ones_own_is_told_of_once() -> None:
    warned = altered(ready(2).combine_rules, warned=("it drops",))
    facts = altered(ready(2), own_batch=7, samples=99, combine_rules=warned)
    worker_group: Any = SimpleNamespace(facts=facts)
    own = Settings(model="train.py:build")
    heard = [(own, facts.model, 7, ("it drops",), 99)]
    for settings, is_told, wanted in (
        (own, False, heard),
        (own, True, []),
        (SMALL, False, []),
    ):
        told: list[Any] = []
        asked = BalanceRequest(devices=PAIR, settings=settings)
        watched: Any = (worker_group, told.append, nothing_kept(), is_told)
        joint_workers = JointWorkers(asked, None, *watched)
        for _ in range(2):
            joint_workers._report_model()
        assert told == wanted


def test_a_model_that_no_split_trains_is_measured_on_one_device() -> None:
    refused = Refusal(message="it mixes samples", remedy="")
    rules = altered(ready(2).combine_rules, refused=refused)
    facts = altered(ready(2), combine_rules=rules)
    steps: Any = dict.fromkeys(("regroup", "rebuild", "start"), lambda *_: None)
    worker_group: Any = SimpleNamespace(alive=False, facts=facts, **steps)
    asked = BalanceRequest(devices=PAIR, settings=SMALL)
    joint_workers = JointWorkers(asked, None, worker_group, quiet, nothing_kept())
    joint_workers.gather(BatchSplit((8, 0)))
    for split in (BatchSplit((8, 8)), BatchSplit((8, 0), (4, 0))):
        with pytest.raises(BadInput, match="it mixes"):
            joint_workers.gather(split)


def warned(*points: CurvePoint, **more: Any) -> list[Warning_]:
    """The warnings of a probe of one GPU, which found these points."""
    found = found_of(fits=64, began=True, trace_warnings=[], largest=64)
    found.device = altered(PAIR[1], simulated=False)
    found.points = {point.batch: point for point in points}
    asked = more.pop("asked", {})
    request = ProbeRequest(devices=PAIR, settings=SMALL, **asked)
    worker: Any = {"request": request, "margin_bytes": request.margin_bytes}
    worker |= {"facts": ready(1), "usable_bytes": more.pop("usable", 1)}
    worker |= {"journal": nothing_kept(), "device": found.device}
    vars(found.probe_worker).update(worker)
    found.attempts = Attempts(found.probe_worker)
    found.attempts.skipped = more.pop("skipped", [])
    vars(found).update(more)
    other = found_of(fits=8, began=False, trace_warnings=[], largest=8)
    return list(probe_warnings(request, [found, other], None))


def changed(
    batch: int, seconds: float, reasons: tuple[str, ...] = (), **of: Any
) -> CurvePoint:
    told = Telemetry(readings=1, duration_s=1.0, throttle_reasons=reasons)
    return exact_point(batch, seconds, telemetry=told, **of)


WIDE = inside(exact_point(48, 0.48), "step_time_s", ci95=(0.47, 0.49))
CALM = [changed(batch, 0.01 * batch) for batch in (8, 64)]
HOT = changed(8, 0.1, ("thermal",), measured_again=True)
CAPPED = changed(8, 0.1, ("power brake", "power cap"), steady=False)
ONCE_MORE = (
    "its speed (thermal) during the measurement: batches were measured again afterwards; "
    "all figures are from after the change"
)
LONGER = "a step of 8 samples took 900 ms, longer than one of 64 (640"


@cases(
    "points, more, wanted",
    (CALM, {"asked": {"parallel": True}}, None),  # the other one did not begin
    (CALM, {"steady": False}, "throttled: again afterwards, except batch 8, 64"),
    ([HOT], {"steady": False}, f"throttled: {ONCE_MORE}"),
    ([changed(8, 0.1, steady=False), CALM[1]], {}, "not-steady: at batch 8 rose"),
    ([CAPPED], {}, "throttled: was throttled (power brake) at batch 8: "),
    ([changed(8, 0.1, late_part=0.11), CALM[1]], {}, "slower-than-profile: at batch 8"),
    ([changed(8, 0.1, late_part=0.1), CALM[1]], {}, None),
    ([changed(8, 0.9), CALM[1]], {}, f"slower-than-larger: {LONGER}"),
    (CALM, {"skipped": [*range(6)]}, "smaller-batch-failed: 0, 1, 2, 3 and 2 more"),
    (CALM, {"asked": {"margin_bytes": MIB}, "usable": None}, "margin-unknown: GPU:1"),
    (CALM, {"usable": None}, None),
    ([*CALM, WIDE], {}, "wide-interval: at batch 48 is not"),
    ([*CALM, WIDE], {"asked": {"for_split": True}}, None),  # its rounds measure again
    ([changed(8, 0.1, unlike=True)], {}, "batches-differ: differ in shape"),
)
def test_what_a_probe_warns_of(
    points: list[CurvePoint], more: dict[str, Any], wanted: str | None
) -> None:
    found = warned(*points, **more)
    code, _, told = (wanted or "").partition(": ")
    assert [one.code for one in found] == ([code] if wanted else [])
    if found:
        assert told in found[0].message
