"""What `layers` computes of blocks and cuts: against numbers by hand, and against what is simulated.

A worker trains a cut as the simulated schedule says, of blocks that may be slower in the pipeline,
or take more memory, than alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpubalance.errors import (
    GpubalanceError,
    NothingFits,
    OutOfMemory,
    PartialResult,
    UsageError,
)
from gpubalance.jobs.events import Doing, Event
from gpubalance.jobs.layers import rounds as cuts
from gpubalance.jobs.layers.costs import (
    BlockCosts,
    DeviceCosts,
    MeasuredBlocks,
    time_blocks,
)
from gpubalance.jobs.layers.layers import _no_help_of, result_of, uncut
from gpubalance.jobs.layers.rounds import CutRounds
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.saved import save
from gpubalance.planning.pipeline.place import Placement, place
from gpubalance.planning.pipeline.problem import (
    Block,
    BlockLoad,
    Cut,
    CutProblem,
    Edge,
    Graph,
    Segment,
    Timed,
    Timeline,
    Updated,
)
from gpubalance.planning.pipeline.schedule import simulate
from gpubalance.results.layers import LayersBaselines, LayersRound, SplitBaseline
from gpubalance.results.timing import BlockTimed, Timing
from gpubalance.settings.device import JointProfile
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.requests import LayersRequest
from gpubalance.system.deadlines import NO_LIMIT
from gpubalance.workers.messages import Measured, Pipe, TimeBlocks
from gpubalance.workers.worker_group import WorkerGroup
from tests.jobs.drawn import nothing_kept, quiet, ready, windows_of
from tests.jobs.probes import (
    MIB,
    QUICK,
    SMALL,
    devices_of,
    done,
    holding_nothing,
    probe_of,
)
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known

GRAPH = Graph(
    tuple(Block(f"b{n}", n, 1000 * n, 1000 * (5 - n), n / 10) for n in range(1, 5)),
    tuple(Edge(n, (n + 1,), 1024) for n in range(3)),
)
ONE = altered(
    QUICK, beta_s=0.0005, update_s=0.002, base_memory=400 * MIB, memory_per_sample=MIB
)
PAIR = devices_of(ONE, altered(ONE, name="other", beta_s=0.001))
LINK = JointProfile(link_latency_s=0.001, link_bytes_per_s=1e8)


def asked(**more: Any) -> LayersRequest:
    usual = {"micro_batch": 16, "micro_batches": 4, "round_s": 0.1}
    measuring = Measuring(windows=1, duration_s=0.5)
    fields = {"joint": LINK, "measuring": measuring, **usual, **more}
    return LayersRequest(devices=PAIR, settings=SMALL, **fields)


def load_of(device: int, micro_batch: int, slower: float = 1.0) -> BlockLoad:
    profile = known(PAIR[device].profile)
    whole_s = slower * profile.compute_s(micro_batch)
    return BlockLoad.by_profile(GRAPH, profile, micro_batch, whole_s)


class CutWorker:
    """Times blocks, and trains with cuts; `slower` and `held` are by device, in the pipeline."""

    def __init__(
        self,
        devices: Sequence[int],
        slower: Mapping[int, float] | None = None,
        held: Mapping[int, int] | None = None,
        latency_s: float = LINK.link_latency_s,
    ) -> None:
        self._devices = devices
        self._slower = slower or {}
        self._held = held or {}
        self._latency_s = latency_s
        self.settings = SMALL
        limits = tuple(PAIR[number].memory_bytes for number in devices)
        told = {"graph": GRAPH, "memory_limit_bytes": limits}
        self.facts = altered(ready(2), **told)

    def replies(self, request: TimeBlocks, *_: object) -> Iterator[Any]:
        size = request.micro_batch
        load = load_of(self._devices[0], size)
        for block in request.blocks:
            if not load.holds(block):
                raise OutOfMemory("full", replica=0)
            timed: Any = {"block": block, "micro_batch": size, "working_bytes": 0}
            for name in ("forward_s", "backward_s", "update_s"):
                timed[name] = (getattr(load, name)[block],) * request.at_least
            timed["fixed_bytes"] = round(load.fixed_bytes[block])
            timed["held_bytes"] = round(load.live_bytes[block])
            yield BlockTimed(**timed)
        yield Measured(memory_peak_bytes=(None,), late_part=None)

    def problem(self, micro_batch: int, micro_batches: int) -> CutProblem:
        loads = [load_of(n, micro_batch, self._slower.get(n, 1.0)) for n in (0, 1)]
        link = (self._latency_s, LINK.link_bytes_per_s)
        return CutProblem(GRAPH, tuple(loads), micro_batch, micro_batches, *link)

    def pipe(self, request: Pipe) -> Iterator[Timing | Measured]:
        problem = self.problem(request.micro_batch, request.micro_batches)
        cut = Cut(problem, request.segments)
        peaks = []
        for number, tasks in enumerate(request.order):
            peaks.append(round(cut.held(tasks)[0]) + self._held.get(number, 0))
            if peaks[-1] > known(PAIR[number].memory_bytes):
                raise OutOfMemory("full", replica=number)
        timeline = simulate(cut, request.order)
        step_s = timeline.step_time_s
        steps = request.steps_per_timing
        stamps: Any = {}
        if request.stamped:
            steps = 1
            stamps = {"timeline": timeline, "step_s": step_s}
        for _ in range(request.at_least):
            yield Timing(steps=steps, seconds=steps * step_s, input_wait_s=0, **stamps)
        yield Measured(memory_peak_bytes=tuple(peaks), late_part=0.0)


def group_of(worker: CutWorker) -> WorkerGroup:
    worker_group: Any = SimpleNamespace(facts=worker.facts, failures={})
    worker_group.worker = lambda _=0: nullcontext(worker)
    worker_group.start = worker_group.end = worker_group.load = lambda **_: None
    return cast("WorkerGroup", worker_group)


def blocks_of(request: LayersRequest) -> list[MeasuredBlocks]:
    """What the real job finds of each device's blocks."""
    groups = [group_of(CutWorker([number])) for number in (0, 1)]
    return time_blocks(request, 4, nothing_kept(), groups, groups[0], quiet)


def rounds_of(worker: CutWorker, events: list[Event], **more: Any) -> CutRounds:
    request = asked(**more)
    costs = BlockCosts(request, GRAPH, blocks_of(request))
    return CutRounds(request, costs, group_of(worker), nothing_kept(), events.append)


def timed_block(block: int, micro_batch: int, ms: int, *sizes: int) -> BlockTimed:
    fixed, held, working = sizes
    return BlockTimed(
        block=block,
        micro_batch=micro_batch,
        forward_s=(ms / 1e3, ms / 1e3, 9.0),
        backward_s=(2 * ms / 1e3,),
        update_s=(ms / 1e4,),
        fixed_bytes=fixed,
        held_bytes=held,
        working_bytes=working,
    )


def test_what_blocks_take_at_a_size_between_those_measured() -> None:
    """The second block did not fit at the larger size, the third at none."""
    points = [
        timed_block(0, 8, 10, 100, 80, 16),
        timed_block(0, 32, 22, 120, 320, 40),
        timed_block(1, 8, 5, 50, 24, 48),
    ]
    costs = DeviceCosts(points, 3)
    assert costs.largest == 32
    load = costs.load(16, 1000.0)
    assert load.forward_s == pytest.approx((0.014, 0.005, math.inf))
    assert load.backward_s == pytest.approx((0.028, 0.01, math.inf))
    assert load.update_s == pytest.approx((0.0016, 0.0005, 0.0))
    assert load.fixed_bytes == (120, 50, 0)
    assert load.live_bytes == (160, 48, 0)
    assert load.memory_bytes == 1000 - 96  # twice the second block's 48
    assert costs.load(32, 1000.0).forward_s == (0.022, math.inf, math.inf)
    assert costs.load(64, 1000.0).forward_s[0] == pytest.approx(0.038)
    timed = timed_block(0, 8, 1, 2, 3, 4)
    unknown = altered(timed, held_bytes=None, working_bytes=None)
    load = DeviceCosts([unknown], 1).load(8, 9.0)
    assert (load.live_bytes, load.memory_bytes) == ((0.0,), 9.0)


def test_blocks_are_timed_at_each_size_that_they_fit_at() -> None:
    """The last block does not fit with 128 samples; where one fails with 8, it is timed with one."""
    first, _ = blocks_of(asked(micro_batch=None))
    assert first.limit_bytes == PAIR[0].memory_bytes
    timed = [(point.micro_batch, point.block) for point in first.points]
    assert timed == [(size, block) for size in (8, 32, 128) for block in range(4)]
    assert [point.micro_batch for point in blocks_of(asked())[1].points] == [16] * 4
    heavy = CutWorker([0])
    small = altered(ready(1), memory_limit_bytes=(None,))
    heavy.facts = small
    told: list[Event] = []
    fits = {1: (0, 1, 2), 8: (0, 2), 32: (2,), 128: ()}

    def replies(request: TimeBlocks, *_: object) -> Iterator[Any]:
        for block in request.blocks:
            if block not in fits[request.micro_batch]:
                raise OutOfMemory("full", replica=0)
            yield timed_block(block, request.micro_batch, 1, 1, 1, 1)
        yield Measured(memory_peak_bytes=(None,), late_part=None)

    heavy.replies = replies  # type: ignore[method-assign]
    groups = [group_of(heavy)] * 2
    request = asked(micro_batch=None)
    found = time_blocks(request, 4, nothing_kept(), groups, groups[0], told.append)
    timed = [(point.micro_batch, point.block) for point in found[0].points]
    assert timed == [(8, 0), (8, 2), (1, 1), (32, 2)]
    assert found[0].limit_bytes is None
    texts = [event.text for event in told[:3] if isinstance(event, Doing)]
    for text, count, size in zip(texts, (4, 2, 1), (8, 32, 128), strict=True):
        measuring = f"measuring {count} blocks of layers, micro-batches of {size}"
        assert text == f"{PAIR[0].label}: {measuring}"


def test_the_fewest_samples_that_are_nearly_as_fast_as_any() -> None:
    request = asked(micro_batch=None)
    costs = BlockCosts(request, GRAPH, blocks_of(request))
    rates = {}
    for power in range(9):  # 512 do not fit
        rates[2**power] = place(CutWorker([0]).problem(2**power, 4)).throughput
    best = min(size for size in rates if rates[size] >= 0.95 * max(rates.values()))
    found = costs.best()
    assert found.problem.micro_batch == best
    assert found.throughput == pytest.approx(rates[best])
    assert costs.best() == found
    first, second = blocks_of(request)
    small = tuple(point for point in second.points if point.micro_batch == 8)
    unlike = [first, altered(second, points=small)]
    assert BlockCosts(request, GRAPH, unlike)._sizes() == [2**n for n in range(10)]


def test_what_a_cut_gave_is_what_the_next_one_is_planned_with() -> None:
    """In the pipeline the first device is twice as slow, and a transfer takes 3 ms more."""
    truth = CutWorker([0, 1], {0: 2.0}, latency_s=0.004)
    request = asked()
    costs = BlockCosts(request, GRAPH, blocks_of(request))
    placed = costs.best()
    assert placed.ci95 is None
    step = simulate(Cut(truth.problem(16, 4), placed.segments), placed.orders)
    step_s = step.step_time_s
    costs.learn(placed, [step.lasting(1.02 * step_s)] * 3, [step_s] * 5)
    wanted = place(truth.problem(16, 4))
    again = costs.best()
    assert again.segments == wanted.segments != placed.segments
    assert again.step_time_s == pytest.approx(wanted.step_time_s)
    # Stamped steps are 2 % off, and nothing was promised before.
    low_s, high_s = known(again.ci95)
    assert high_s == pytest.approx(1.02 * again.step_time_s)
    assert low_s == pytest.approx(again.step_time_s / 1.02)
    same = costs.corrected(placed)
    assert same.step_time_s == pytest.approx(step_s)
    sure = replace(again, off=0.0)
    costs.learn(sure, [again.timeline], [1.1 * again.step_time_s] * 5)
    assert known(costs.best().off) == pytest.approx(0.1)
    times_s = [again.step_time_s * part for part in (0.8, 1.0, 1.2)]
    costs.learn(replace(again, off=None), [again.timeline], times_s)
    assert known(costs.best().off) == pytest.approx(0.955, abs=1e-4)  # √2 · 0.6753
    costs.learn(again, [again.timeline], [again.step_time_s])  # too few to know
    assert costs.best().ci95 is None


def test_rounds_end_when_no_cut_promises_more_and_the_best_is_proven() -> None:
    truth = CutWorker([0, 1], {0: 2.0})
    events: list[Event] = []
    rounds = rounds_of(truth, events, force=True)
    assert rounds.latest is None
    cut = rounds.find_and_prove()
    assert rounds.latest is rounds.proof is cut
    assert rounds.resumed == 0
    wanted = place(truth.problem(16, 4))
    first, second = rounds.records
    assert (first.number, second.number) == (1, 2)
    assert first.segments != second.segments == wanted.segments == cut.placed.segments
    assert known(second.step_time_s) == pytest.approx(wanted.step_time_s)
    assert second.predicted_s == pytest.approx(wanted.step_time_s)
    assert known(first.step_time_s) > 1.01 * known(second.step_time_s)
    told = [event.record for event in done(events, LayersRound)]
    assert told == [first, second]
    rounds.proof = None
    assert rounds.latest is rounds.measured[1]
    once = rounds_of(CutWorker([0, 1], {0: 2.0}), [], rounds=1)
    assert once.find_and_prove().placed.segments == first.segments
    assert len(once.records) == 1
    size: Any = {"batches": (32, 32), "micro_batches": (32, 32)}
    split = SplitBaseline(throughput=100.0, measured=True, **size)
    baselines = LayersBaselines(split=split)
    result = result_of(rounds, cut, truth.facts, baselines, complete=True)
    rate = 64 / wanted.step_time_s
    assert result.throughput.median == pytest.approx(rate)
    assert result.speedup_over_split == pytest.approx(rate / 100)
    assert result.bubble_bound == pytest.approx(1 / 5)
    idle = [stage.bubble_s + stage.transfer_s for stage in result.stages]
    assert result.bubble == pytest.approx(sum(idle) / 2 / wanted.step_time_s)
    assert result.forced
    for stage in result.stages:
        assert stage.memory_peak_bytes == round(wanted.peak_bytes[stage.device])
    times = [block.compute_s[0] for block in result.blocks]
    passes_s = 2.0 * known(PAIR[0].profile).compute_s(16)
    assert times == pytest.approx([n / 10 * passes_s for n in range(1, 5)])
    sent = [block.crossing_bytes for block in result.blocks]
    assert sent == [0, 1024, 1024, 1024]


@cases("off, gain", (None, 1.01), (0.05, 1.05))
def test_a_round_promises_more_than_it_may_be_off(
    off: float | None, gain: float
) -> None:
    rounds: Any = rounds_of(CutWorker([0, 1]), [])
    placed = replace(rounds.known.best(), off=off)
    rounds.known = SimpleNamespace(best=lambda: placed, corrected=lambda one: one)
    rounds._try = lambda cut: rounds._tried.add(cut.workload.name)
    for more, tried in ((0.999, 0), (1.001, 1)):
        rounds._best = (placed.throughput / (gain * more), placed)
        assert rounds._best_of_rounds() is placed
        assert len(rounds._tried) == tried


def test_a_device_that_runs_out_of_memory_is_planned_with_less() -> None:
    events: list[Event] = []
    limits = [known(device.memory_bytes) for device in PAIR]
    rounds = rounds_of(CutWorker([0, 1], held={0: 250 * MIB}), events)
    cut = rounds.find_and_prove()
    failed = [record for record in rounds.records if record.step_time_s is None]
    assert failed
    assert {record.ran_out for record in failed} == {0}
    assert {record.outcome for record in failed} == {"oom"}
    assert cut.placed.peak_bytes[0] + 250 * MIB <= limits[0]
    rounds = rounds_of(CutWorker([0, 1], held={0: 600 * MIB, 1: 600 * MIB}), events)
    with pytest.raises((PartialResult, NothingFits)) as caught:
        rounds.find_and_prove()
    assert len(rounds.records) <= 5
    assert "fits" in caught.value.remedy


def test_what_fits_is_told_with_the_margin_that_is_lacking() -> None:
    """The first device's memory is known, and 64 MiB less than was thought; the other's is not."""
    request = asked(margin_bytes=8 * MIB)
    first, second = blocks_of(request)
    first = altered(first, limit_bytes=210 * MIB)
    blocks = [first, altered(second, limit_bytes=None)]
    costs = BlockCosts(request, GRAPH, blocks)
    placed = costs.best()
    peak = placed.peak_bytes[0]
    assert costs.what_fits(16).startswith("--micro-batch 8 fits: GPU:0 blocks ")
    assert "of n/a)" in costs.what_fits(16)
    costs.ran_out(replace(placed, peak_bytes=(peak, 1.0)), 0)
    lacking = (210 - 8) * MIB - 0.95 * peak
    margin = math.ceil((8 * MIB + int(lacking)) / MIB)
    assert costs.what_fits(16).startswith(f"--margin {margin}MiB --micro-batch ")
    costs = BlockCosts(asked(margin_bytes={"1": 8 * MIB}), GRAPH, blocks)
    costs.ran_out(replace(placed, peak_bytes=(peak, 1.0)), 0)
    lacking = int(210 * MIB - 0.95 * peak)
    each = [math.ceil((kept + lacking) / MIB) for kept in (0, 8 * MIB)]
    typed = "--margin 0={}MiB,1={}MiB --micro-batch ".format(*each)
    assert costs.what_fits(16).startswith(typed)
    costs.ran_out(placed, None)
    nothing = BlockCosts(asked(margin_bytes=300 * MIB), GRAPH, [first, first])
    with pytest.raises(NothingFits, match="does not fit on any device") as caught:
        nothing.best()
    smaller = "no smaller micro-batch fits: take a smaller --margin, "
    assert smaller in caught.value.remedy
    assert "GPU:0 0 B, GPU:1 0 B" in caught.value.message


@cases("error, helps", (UsageError, False), (NothingFits, False), (PartialResult, True))
def test_a_refused_command_is_not_helped_by_its_journal(
    error: type[GpubalanceError], helps: bool
) -> None:
    journal: Any = SimpleNamespace(helps=True)
    with pytest.raises(error), _no_help_of(journal):
        raise error("refused")
    assert journal.helps == helps


def hand_timed(*rows: tuple[Any, ...]) -> tuple[Timed, ...]:
    return tuple(sorted((Timed(*row) for row in rows), key=lambda one: one.start_s))


HAND = Timeline(
    hand_timed(
        (0, "forward", 0, 0, 0.0, 0.0, 0.0, 1.0),
        (0, "forward", 1, 0, 0.0, 0.0, 1.0, 2.0),
        (0, "backward", 0, 0, 5.5, 6.0, 6.0, 8.0),
        (0, "backward", 1, 0, 9.5, 10.0, 10.0, 12.0),
        (1, "forward", 0, 1, 1.0, 1.5, 1.5, 2.5),
        (1, "backward", 0, 1, 2.5, 2.5, 2.5, 5.5),
        # Sent while the device was busy
        (1, "forward", 1, 1, 2.0, 2.5, 5.5, 6.5),
        (1, "backward", 1, 1, 6.5, 6.5, 6.5, 9.5),
    ),
    (Updated(0, 12.0, 12.5), Updated(1, 9.5, 10.0)),
)


def cut_of(*stamped: Timeline) -> tuple[Placement, cuts.MeasuredCut]:
    """A cut with these stamped steps, of which one without stamps takes 10 s."""
    segments = (Segment(0, 1, 0), Segment(2, 3, 1))
    problem = CutWorker([0, 1]).problem(16, 2)
    orders = []
    for device in (0, 1):
        orders.append(tuple(one.task for one in HAND.tasks if one.device == device))
    peaks = (10.4, 20.6)
    placed = Placement(problem, segments, tuple(orders), peaks, (2, 1), HAND)
    steps = []
    for step in stamped:
        step_s = step.step_time_s
        stamps: Any = {"timeline": step, "step_s": step_s}
        steps.append(Timing(steps=1, seconds=step_s, input_wait_s=0, **stamps))
    usual = [Timing(steps=2, seconds=20.0, input_wait_s=0)]
    (window,) = windows_of(usual, steps, memory_peak_bytes=(5, 7))
    measurer = Measurer(group_of(CutWorker([0, 1])), nothing_kept(), quiet)
    workload = cuts.workload_of(placed, PAIR)
    measurer.windows[workload].append(window)
    return placed, cuts.MeasuredCut(placed, workload, measurer)


def test_the_parts_of_stages_by_hand() -> None:
    """Stamped steps take 12.5 s; a step without stamps takes 10 s, so each part four fifths."""
    odd = replace(HAND, updates=(Updated(0, 12.0, 12.4), Updated(1, 9.5, 11.5)))
    placed, measured = cut_of(HAND.lasting(14.0), HAND, odd)
    assert cuts.usual_timeline(measured.windows).step_time_s == pytest.approx(12.5)
    parts = []
    for stage in cuts.stages(measured):
        of_stage = (stage.forward_s, stage.backward_s, stage.transfer_s)
        parts.append((*of_stage, stage.update_s, stage.bubble_s))
        assert stage.memory_peak_bytes == (5, 7)[stage.device]
        assert stage.memory_predicted_bytes == (10, 21)[stage.device]
        assert stage.in_flight == (2, 1)[stage.device]
    assert parts[0] == pytest.approx((1.6, 3.2, 0.8, 0.4, 4.0))
    assert parts[1] == pytest.approx((1.6, 4.8, 0.4, 0.4, 2.8))
    told = "GPU:0 blocks 0–1, GPU:1 blocks 2–3; 2 micro-batches of 16"
    assert cuts.cut_text(placed, PAIR) == told


def test_the_parts_of_stages_are_no_longer_than_their_step() -> None:
    """Each is half of two of three steps: half by the median, so that all are one and a half."""
    forward = (0, "forward", 0, 0, 0.0, 0.0, 0.0, 6.0)
    backward = (0, "backward", 0, 0, 0.0, 0.0, 0.0, 6.0)
    after = (0, "backward", 0, 0, 6.0, 6.0, 6.0, 12.0)
    late = Updated(0, 6.0, 12.0)
    _, measured = cut_of(
        Timeline(hand_timed(forward, after), (Updated(0, 12.0, 12.0),)),
        Timeline(hand_timed(forward), (late,)),
        Timeline(hand_timed(backward), (late,)),
    )
    stage, _ = cuts.stages(measured)
    of_stage = (stage.forward_s, stage.backward_s, stage.update_s)
    assert of_stage == pytest.approx((10 / 3,) * 3)
    assert (stage.transfer_s, stage.bubble_s) == pytest.approx((0.0, 0.0))


def test_a_model_is_cut_only_where_that_can_be_faster() -> None:
    """Of rates a > b with 4 micro-batches stages in a row give at most a + 3/4 · b."""
    probe = probe_of(PAIR)
    save(probe)
    rates = [known(one.solo_best).throughput for one in probe.probes]
    request = asked()
    with pytest.raises(UsageError) as caught:
        uncut(request, GRAPH, NO_LIMIT, quiet, nothing_kept())
    assert "at least 12.5 % of each step (the bubble)" in caught.value.message
    at_most = max(rates) + 3 / 4 * min(rates)
    rate = f"cut into stages it would give at most {at_most:.0f} samples/s"
    assert rate in caught.value.message
    # With branches all devices may be busy throughout, so their costs decide.
    uncut(
        request, replace(GRAPH, edges=GRAPH.edges[1:]), NO_LIMIT, quiet, nothing_kept()
    )
    forced = uncut(asked(force=True), GRAPH, NO_LIMIT, quiet, nothing_kept())
    assert known(forced.solo_best).throughput == pytest.approx(max(rates))
    assert known(forced.split).throughput > max(rates)
    assert forced.split_why_not is None
    save(holding_nothing(probe))
    one = uncut(request, GRAPH, NO_LIMIT, quiet, nothing_kept())
    assert known(one.solo_best).device == 0
    assert one.split is None
    assert one.split_why_not == "the whole model does not fit on GPU:1"
