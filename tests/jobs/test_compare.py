"""`compare`, the stage: what is held against what, what is not alike, and when a gate fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpubalance.engine.pace import ComputeTimes, noise_seed
from gpubalance.errors import BadInput, GpubalanceError, Regression
from gpubalance.jobs.compare.compare import compare
from gpubalance.jobs.compare.regression import check_regression
from gpubalance.jobs.plan.plan import plan as plan_stage
from gpubalance.numbers.stats import median
from gpubalance.results.common import StepTime, Warning_
from gpubalance.results.comparison import Against, Comparison
from gpubalance.results.plan import Balance, Plan
from gpubalance.results.probe import CurvePoint, Probe
from gpubalance.results.run import Run
from gpubalance.settings.device import Device
from gpubalance.settings.planning import PlanRequest
from gpubalance.system.versions import software
from tests.cli.program import ROOT
from tests.jobs.drawn import drawn_run, noisy_devices
from tests.jobs.probes import inside, probe_of
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known

PAIR = ROOT / "configs" / "gtx1080ti-gtx1080.toml"
DEVICES, JOINT = noisy_devices(PAIR, 0.02)


def run_of(batches: tuple[int, ...] = (820, 568), seed: int = 1) -> Run:
    return drawn_run(DEVICES, JOINT, batches, seed=seed)


def slower(run: Run, factor: float) -> Run:
    """The run on a machine that is slower by a factor, which its settings do not show."""
    times = run.step_time_s
    scaled = {
        "median": factor * times.median,
        "samples": tuple(factor * time for time in times.samples),
    }
    return inside(
        inside(run, "step_time_s", **scaled),
        "throughput",
        median=run.throughput.median / factor,
    )


BASELINE = run_of()
OTHER = run_of(seed=2)


def compared_in(folder: Path, results: Mapping[str, Run | Probe | Plan]) -> Comparison:
    """Compares results after writing them to files of these names."""
    for name, result in results.items():
        (folder / f"{name}.json").write_text(result.model_dump_json())
    return compare([folder / f"{name}.json" for name in results])


Compared = Callable[..., Comparison]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    """A function that compares results from files with numbers for names."""
    return lambda *results: compared_in(
        tmp_path, {str(number): result for number, result in enumerate(results)}
    )


def verdicts(found: Comparison) -> list[str | None]:
    return [
        against.ratio.verdict if against.ratio else None
        for against in found.against_first
    ]


def unlike_of(against: Against) -> list[tuple[str, str | None, str | None]]:
    return [(u.what, u.baseline, u.other) for u in against.unlike]


def test_each_is_held_against_the_first(compared: Compared) -> None:
    others = (
        OTHER,
        slower(OTHER, 1.05),
        slower(OTHER, 0.95),
        run_of((400, 568)),
        BASELINE,
    )
    found = compared(BASELINE, *others)
    assert verdicts(found) == ["no difference", "slower", "faster", "slower", None]
    assert [against.same_measurement for against in found.against_first] == [
        False
    ] * 4 + [True]
    assert [against.result for against in found.against_first] == [1, 2, 3, 4, 5]
    # Other batches are no unlikeness, as they are what is compared.
    assert all(not against.unlike for against in found.against_first)
    document = found.model_dump_json()
    assert Comparison.model_validate_json(document).model_dump_json() == document


def _changed(field: str, **changed: Any) -> Callable[[Run], Run]:
    return lambda run: inside(run, field, **changed)


def _first_device(**changed: Any) -> Callable[[Run], Run]:
    def change(run: Run) -> Run:
        first, *rest = run.devices
        return altered(run, devices=(altered(first, **changed), *rest))

    return change


PROFILE = known(DEVICES[0].profile)


@cases(
    "change, told",
    (
        _changed("settings", model="train.py:build"),
        ("model", "small", "train.py:build"),
    ),
    (
        _changed("settings", precision="mixed_float16"),
        ("precision", "tf32", "mixed_float16"),
    ),
    (_changed("settings", xla=True), ("xla", "no", "yes")),
    (_changed("settings", input="host"), ("input", "device", "host")),
    (_changed("settings", all_reduce="nccl"), ("all-reduce", "auto", "nccl")),
    (_changed("environment", gpubalance="9.9"), ("gpubalance", None, "9.9")),
    (
        _changed("environment", tensorflow="2.0.0"),
        ("tensorflow", software().tensorflow, "2.0.0"),
    ),
    (_changed("environment", driver="580.1"), ("driver", None, "580.1")),
    (
        _first_device(uuid="GPU-0123456789"),
        ("GPU:0", "GeForce GTX 1080 Ti (SIM-0)", None),
    ),
    (_first_device(name="Other"), ("GPU:0 name", "GeForce GTX 1080 Ti", "Other")),
    (_first_device(profile=None), ("GPU:0 has a profile", "yes", "no")),
    (
        _first_device(profile=altered(PROFILE, noise=0.5)),
        ("GPU:0 noise", "0.02", "0.5"),
    ),
    (_changed("model", parameters=7), ("the model's parameters", "648", "7")),
)
def test_what_is_not_the_same_is_named(
    compared: Compared,
    change: Callable[[Run], Run],
    told: tuple[str, str | None, str | None],
) -> None:
    what, baseline, other = told
    found = [
        u
        for u in compared(BASELINE, change(OTHER)).against_first[0].unlike
        if u.what == what
    ]
    assert len(found) == 1
    assert baseline in (None, found[0].baseline)
    assert other in (None, found[0].other)


def test_a_device_is_the_same_under_another_index(compared: Compared) -> None:
    """A device is the same under another index and one without a UUID of its own by label."""
    swapped = [altered(DEVICES[1], index=0), altered(DEVICES[0], index=1)]
    found = compared(
        BASELINE, drawn_run(swapped, JOINT, (568, 820), seed=2)
    ).against_first[0]
    assert [(pair.baseline, pair.other) for pair in found.devices] == [(0, 1), (1, 0)]
    assert found.unlike == ()

    alone = compared(
        BASELINE, drawn_run(DEVICES[:1], JOINT, (820,), seed=2)
    ).against_first[0]
    assert [(pair.baseline, pair.other) for pair in alone.devices] == [
        (0, 0),
        (1, None),
    ]
    assert unlike_of(alone) == [("GPU:1", "GeForce GTX 1080 (SIM-1)", "not in use")]

    hidden = {"devices": tuple(altered(device, uuid="hidden") for device in DEVICES)}
    found = compared(
        altered(BASELINE, **hidden), altered(OTHER, **hidden)
    ).against_first[0]
    assert [(pair.baseline, pair.other) for pair in found.devices] == [(0, 0), (1, 1)]


def sampled(probe: Probe, factor: float = 1.0, seed: int = 0) -> Probe:
    """The probe with random step times like those of simulated devices, multiplied by `factor`."""

    def point(device: Device, one: CurvePoint) -> CurvePoint:
        times = ComputeTimes(known(device.profile), seed=noise_seed(seed, one.batch))
        samples = tuple(factor * times.next_s(one.batch) for _ in range(31))
        middle = median(samples)
        step_time = StepTime(
            median=middle,
            mad=0.0,
            ci95=None,
            steps_per_sample=1,
            samples=samples,
            at_s=samples,
        )
        throughput = altered(one.throughput, median=one.batch / middle)
        return altered(one, step_time_s=step_time, throughput=throughput)

    probes = []
    for entry in probe.probes:
        device = probe.devices[entry.device]
        curve = tuple(point(device, measured) for measured in entry.curve)
        probes.append(altered(entry, curve=curve))
    return altered(probe, probes=tuple(probes))


def test_probes_are_compared_device_by_device_and_batch(compared: Compared) -> None:
    """Probes are compared and judged device by device where both have a batch size."""
    baseline = sampled(probe_of(DEVICES))
    other = sampled(probe_of(DEVICES), 1.2, seed=1)
    with pytest.raises(Regression, match=r"on GPU:0 is .*on GPU:1 is "):
        check_regression(compared(baseline, other), 0.05)
    first, *rest = other.probes
    fewer = altered(other, probes=(altered(first, curve=first.curve[1:]), *rest))
    found = compared(baseline, fewer).against_first[0]
    assert found.ratio is None
    assert [[point.batch for point in device.points] for device in found.devices] == [
        [516, 1032],
        [8, 356, 712],
    ]
    for device in found.devices:
        assert known(device.ratio).verdict == "slower"
        assert known(device.ratio).value == pytest.approx(1 / 1.2, rel=0.02)


def plan_of() -> Plan:
    return plan_stage(probe_of(DEVICES), DEVICES, PlanRequest())


def test_a_plan_is_its_run_or_an_unjudged_prediction(compared: Compared) -> None:
    plan = plan_of()
    predicted = compared(BASELINE, plan)
    assert [result.kind for result in predicted.results] == ["run", "prediction"]
    assert verdicts(predicted) == [None]
    expected = pytest.approx(
        plan.predicted.throughput / BASELINE.throughput.median, rel=1e-5
    )
    assert known(predicted.against_first[0].ratio).value == expected

    proven = altered(
        plan, balance=Balance(rounds=(), run=slower(OTHER, 0.9), solo_gap=None)
    )
    measured = compared(BASELINE, proven)
    assert measured.results[1].kind == "run"
    assert [d.limit for d in measured.results[1].devices] == [
        share.limit for share in plan.shares
    ]
    assert verdicts(measured) == ["faster"]


def test_a_probe_is_not_held_against_a_run(compared: Compared) -> None:
    with pytest.raises(BadInput, match=r"0\.json is a run, .*1\.json is a probe"):
        compared(BASELINE, probe_of(DEVICES))


def test_what_makes_a_result_doubtful_goes_with_it(compared: Compared) -> None:
    codes = ("throttled", "throttled", "even-split-out-of-memory")
    warnings = tuple(Warning_(code=code, message="m", next="n") for code in codes)
    found = compared(
        BASELINE, altered(OTHER, complete=False, warnings=warnings)
    ).results[1]
    assert [warning.code for warning in found.warnings] == ["throttled"]
    assert not found.complete


def disturbed(run: Run, factor: float = 1.0) -> Run:
    """The run, slower by `factor`, on a machine whose other work comes and goes."""
    times = tuple(
        t * (1.3 if i // 5 % 2 else 1.0) for i, t in enumerate(run.step_time_s.samples)
    )
    return slower(inside(run, "step_time_s", samples=times), factor)


def test_timings_of_a_machine_that_was_not_quiet_say_so(compared: Compared) -> None:
    found = compared(BASELINE, disturbed(OTHER))
    assert [result.not_quiet for result in found.results] == [
        None,
        "timings vary by 21 %",
    ]
    early = OTHER.step_time_s.samples[:20]
    late = tuple(1.2 * seconds for seconds in early)
    told = early + early + late[:8]
    shifted = inside(OTHER, "step_time_s", samples=told, at_s=told)
    seen = compared(BASELINE, shifted).results[1].not_quiet
    assert seen == "timings did not keep their level"
    with pytest.raises(
        Regression,
        match=r"but the machine was not quiet \(.*1\.json: timings vary by 21 %\)",
    ):
        check_regression(compared(BASELINE, disturbed(OTHER, 2.0)), 0.05)


def test_the_gate_fails_only_where_it_is_slower_by_more(compared: Compared) -> None:
    found = compared(BASELINE, slower(OTHER, 1.07), slower(OTHER, 1.03))
    with pytest.raises(Regression) as caught:
        check_regression(found, 0.05)
    assert caught.value.exit_code == 9
    assert "1.json is " in caught.value.message
    assert "2.json" not in caught.value.message
    check_regression(found, 0.08)
    with pytest.raises(Regression, match=r"2\.json"):
        check_regression(found, 0.0)
    # A difference that does not show fails no gate, nor does a faster run.
    check_regression(compared(BASELINE, OTHER, slower(OTHER, 0.9)), 0.0)


def test_a_gate_that_can_not_judge_does_not_pass(compared: Compared) -> None:
    short = inside(
        slower(OTHER, 1.5), "step_time_s", samples=(1.0, 1.1), at_s=(1.0, 2.1)
    )
    fewer = probe_of(DEVICES[:1])
    cases: list[tuple[Comparison, str]] = [
        (compared(BASELINE, plan_of()), "was never run"),
        (compared(BASELINE, BASELINE), "is the same measurement"),
        (compared(BASELINE, short), "too few timings"),
        (
            compared(BASELINE, _changed("settings", model="probe")(OTHER)),
            "is not the same work",
        ),
        (
            compared(sampled(probe_of(DEVICES)), sampled(fewer, seed=1)),
            "no batch size of GPU:1 in common",
        ),
    ]
    for found, says in cases:
        with pytest.raises(GpubalanceError, match=says) as caught:
            check_regression(found, 0.05)
        assert caught.value.exit_code == 4
        assert caught.value.remedy
