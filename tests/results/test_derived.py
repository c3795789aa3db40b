"""What records say of themselves: rates, intervals, spans of a step, reasons, and what is unsound."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gpubalance.errors import BadInput
from gpubalance.results.combine_rules import CombineRules
from gpubalance.results.common import Model, Optimizer, shapes_text
from gpubalance.results.layers import Span, StepTask, StepTimeline, StepUpdate
from gpubalance.results.plan import Plan
from gpubalance.results.probe import CurvePoint, SoloRate, StepTimeModel, peaks_by_batch
from gpubalance.results.records import is_estimate, read_record, read_result, result_of
from gpubalance.results.run import Run, SoloBest, alone_in_use
from gpubalance.results.subject import warnings_of
from gpubalance.results.timing import Telemetry, passing, throttling
from gpubalance.results.warnings import warning
from tests.jobs.probes import QUICK, devices_of, inside, point_of, probe_of
from tests.render.samples import BALANCE, DATA, PLAN, PROBE, RUN, document, subject
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known


def point(
    batch: int, interval: tuple[float, float] | None, peak: int | None = None
) -> CurvePoint:
    """A point of 0.2 s."""
    one = altered(point_of(QUICK, batch, 0.2), memory_peak_bytes=peak)
    return inside(one, "step_time_s", ci95=interval)


def test_half_of_an_interval_is_a_part_of_the_median() -> None:
    known_half, unknown = point(8, (0.19, 0.21)), point(8, None)
    assert known_half.step_time_s.relative_half_width == pytest.approx(0.05)
    assert unknown.step_time_s.relative_half_width == 0.0
    assert known_half.half_width == pytest.approx(0.05)
    assert unknown.half_width == math.inf


def test_peaks_are_in_the_order_of_batches() -> None:
    points = [point(16, None, 300), point(4, None), point(8, None, 200)]
    assert peaks_by_batch(points) == [(8, 200), (16, 300)]


@cases(
    "shapes, text",
    (((28, 28, 1),), "28×28×1"),
    (((None, 80), (3,)), "any×80 and 3"),
    (((None,),), "any length"),
    (((),), "1"),
)
def test_shapes_as_text(shapes: tuple[tuple[int | None, ...], ...], text: str) -> None:
    assert shapes_text(shapes) == text


def test_models_are_alike_as_far_as_both_are_known() -> None:
    model = Model(name="m", parameters=5, gradient_bytes=20)
    shaped = altered(model, input_shapes=((3,),))
    adam = altered(model, optimizer=Optimizer(name="Adam", per_weight=2))
    others = {"name": "n", "parameters": 6, "gradient_bytes": 24}
    assert model.is_like(shaped)
    assert shaped.is_like(model)
    assert shaped.is_like(adam)
    for name, other in others.items():
        assert not model.is_like(altered(model, **{name: other}))
    assert not shaped.is_like(altered(model, input_shapes=((4,),)))
    sgd = Optimizer(name="SGD", per_weight=0)
    assert not adam.is_like(altered(model, optimizer=sgd))
    assert str(adam.optimizer) == "Adam, which holds 2 numbers for a weight"


@cases(
    "masks, reasons",
    ([], ()),
    ([0x1, 0x2, 0x100], ()),
    ([0x41, 0x4], ("power cap", "thermal")),
    ([0x8 | 0x10 | 0x20], ("hardware slowdown", "software thermal", "sync boost")),
    ([0x80, 0x200, 0x400], ("board limit", "power brake", "reliability")),
    ([0x1000], ("reason 0x1000",)),
)
def test_reasons_are_nvmls_bits(masks: list[int], reasons: tuple[str, ...]) -> None:
    assert throttling(masks) == reasons


def test_reasons_that_pass_and_energy() -> None:
    given = ("power cap", "power brake", "thermal", "sync boost")
    assert passing(given) == ("thermal", "power brake")
    telemetry = Telemetry(readings=3, duration_s=10.0, energy_j=2000.0)
    assert telemetry.samples_per_joule(300.0) == pytest.approx(1.5)
    for energy in (None, 0.0):
        unknown = altered(telemetry, energy_j=energy)
        assert unknown.samples_per_joule(300.0) is None


def task(device: int, micro_batch: int, *times_s: float) -> StepTask:
    """A forward, with the times when it was sent, ready, started and ended."""
    names = ("sent_s", "ready_s", "start_s", "end_s")
    told: Any = dict(zip(names, times_s, strict=True))
    told |= {"segment": device, "micro_batch": micro_batch, "device": device}
    return StepTask(kind="forward", **told)


def test_a_transfer_counts_while_its_device_has_nothing_to_do() -> None:
    timeline = StepTimeline(
        tasks=(
            task(0, 0, 0.0, 0.0, 0.0, 1.0),
            task(1, 0, 1.0, 1.5, 1.6, 3.0),
            task(0, 1, 0.0, 0.0, 1.0, 2.0),
            # Sent while the device computes, and there after that
            task(1, 1, 2.0, 3.5, 3.5, 4.0),
            # There before the device is free
            task(1, 2, 3.0, 3.9, 4.0, 5.0),
        ),
        updates=(
            StepUpdate(device=1, start_s=5.0, end_s=5.5),
            StepUpdate(device=0, start_s=2.0, end_s=2.25),
        ),
        step_time_s=5.5,
    )
    assert list(timeline.spans(1)) == [
        Span("transfer", 1.0, 1.5),
        Span("forward", 1.6, 3.0, 0),
        Span("transfer", 3.0, 3.5),
        Span("forward", 3.5, 4.0, 1),
        Span("forward", 4.0, 5.0, 2),
        Span("update", 5.0, 5.5),
    ]
    first, second, update = timeline.spans(0)
    assert (first, second) == (Span("forward", 0, 1, 0), Span("forward", 1, 2, 1))
    assert update == Span("update", 2.0, 2.25)
    orders = timeline.orders(2, 2)
    assert [[one.micro_batch for one in order] for order in orders] == [[0, 1], [0, 1]]
    assert [[one.segment for one in order] for order in orders] == [[0, 0], [1, 1]]
    assert [len(order) for order in timeline.orders(3, 1)] == [1, 1, 0]


@cases("with_xla, ratio, alone", (None, None, 100.0), (8, 0.4, 100.0), (40, 2.0, 200.0))
def test_the_best_alone_is_with_xla_if_that_is_faster(
    with_xla: int | None, ratio: float | None, alone: float
) -> None:
    (probe,) = probe_of(devices_of(QUICK)).probes
    timed = None if with_xla is None else point(with_xla, None)
    best = SoloRate(batch=8, throughput=100.0)
    probe = altered(probe, solo_best=best, with_xla=timed)
    assert probe.xla_ratio == ratio
    assert probe.alone == alone
    unknown = altered(probe, solo_best=None)
    assert (unknown.xla_ratio, unknown.alone) == (None, None)


@cases(
    "fields, told",
    ({"alpha_s": 0.0, "beta_s": 0.0}, "a step must take time"),
    ({"curve": ((8, 0.1), (8, 0.2))}, "its batches must rise"),
    ({"curve": ((9, 0.1), (8, 0.2))}, "its batches must rise"),
    ({"curve": None, "planned_with": "curve"}, "there is none"),
)
def test_a_model_of_step_times_is_sound(fields: dict[str, Any], told: str) -> None:
    sound: dict[str, Any] = {"alpha_s": 0.1, "beta_s": 0.0, "residual": 0.0}
    sound |= {"planned_with": "line", "curve": None}
    assert StepTimeModel(**sound).planned.step_time_s(8) == 0.1
    curved = StepTimeModel(**sound | {"curve": ((8, 0.3),), "planned_with": "curve"})
    assert curved.planned.step_time_s(8) == 0.3
    with pytest.raises(ValueError, match=told):
        StepTimeModel(**sound | fields)


def test_rates_alone_are_added_up_of_devices_in_use() -> None:
    bests = [SoloBest(device=n, batch=8, throughput=100.0 * (n + 1)) for n in range(3)]
    assert alone_in_use(bests, (8, 0, 8)) == 400.0
    assert alone_in_use((), (8, 0, 8)) is None
    assert alone_in_use(None, (8, 0, 8)) is None
    for ratio in (None, 0.9, 1.0, 1.1):
        assert altered(bests[0], xla_ratio=ratio).is_with_xla is (ratio == 1.1)


def test_the_powers_of_a_step_and_its_fingerprint() -> None:
    step = {"MatMul": 3, "Add": 5, "FusedBatchNormV3": 2, "Mul": 1}
    known_step = CombineRules(exponents=(1, 2), step=step)
    assert [known_step.exponent(place) for place in range(3)] == [1, 2, 0]
    parts = (("FusedBatchNormV3", 2), ("MatMul", 3), ("others", 6))
    assert known_step.fingerprint == parts
    assert CombineRules().fingerprint is None


def test_a_warning_has_the_code_before_the_slash() -> None:
    words = {"device": "A", "part": "5 %", "slower": "slower", "advice": "b"}
    told = warning("throttled/speed", **words)
    assert (told.code, told.next) == ("throttled", "b")
    assert told.message.startswith("A became 5 % slower")


def test_a_balances_run_counts_with_its_warnings_first() -> None:
    balanced = subject(BALANCE)
    plan = known(balanced.plan)
    run = known(plan.run)
    assert balanced.run == run
    assert balanced.ran == run.replicas
    assert (balanced.kind, balanced.split) == ("plan", plan.split)
    first = warning("sync-unknown")
    second = warning("shares-assumed")
    proven = altered(known(plan.balance), run=altered(run, warnings=(first,)))
    warned = altered(plan, balance=proven, warnings=(second,))
    assert warnings_of(warned) == (first, second)
    probe = subject(PROBE)
    assert (probe.run, probe.plan, probe.split, probe.ran) == (None, None, None, ())
    assert probe.probed
    assert subject(RUN).split == known(subject(RUN).run).split


def test_a_plan_is_complete_once_its_run_and_its_data_are() -> None:
    plan = known(subject(BALANCE).plan)
    assert plan.complete
    for run in (None, altered(known(plan.run), complete=False)):
        assert not inside(plan, "balance", run=run).complete
    with_data = altered(plan.settings, data="data.py:batches")
    assert not altered(plan, settings=with_data).complete
    assert known(subject(PLAN).plan).complete


def test_files_of_another_kind_or_version_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a run, not a plan"):
        read_record(RUN, Plan)
    assert result_of(RUN, Run) == read_result(RUN)
    file = tmp_path / "other.json"
    for change, told in (
        ({"schema_version": 2}, "has schema_version 2, this gpubalance reads 1"),
        ({"kind": 5}, "is not a result of a command"),
        ({"kind": "novel"}, "is a novel, not a result"),
        ({"kind": "queue"}, "is a queue, not a result"),
        ({"kind": "balance-estimate"}, "is an estimate that --dry-run wrote"),
    ):
        file.write_text(json.dumps(document(RUN) | change))
        with pytest.raises(BadInput, match=told):
            read_result(file)
        assert is_estimate(file) is ("estimate" in str(change))
    file.write_text("[1]")
    assert not is_estimate(file)
    assert not is_estimate(DATA)
    assert not is_estimate(tmp_path / "missing")
