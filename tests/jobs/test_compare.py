"""`compare`, the stage: what is held against what, what is not alike, and when a gate fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpubalance.engine.pace import ComputeTimes, noise_seed
from gpubalance.errors import BadInput, GpubalanceError, Regression
from gpubalance.jobs.compare.compare import check_regression, compare
from gpubalance.jobs.plan.plan import plan as plan_stage
from gpubalance.numbers.stats import median
from gpubalance.results.common import Warning_
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
    samples = tuple(factor * time for time in times.samples)
    taken = inside(run, "step_time_s", median=factor * times.median, samples=samples)
    return inside(taken, "throughput", median=run.throughput.median / factor)


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
    ratios = [against.ratio for against in found.against_first]
    return [ratio.verdict if ratio else None for ratio in ratios]


def pairs(against: Against) -> list[tuple[int | None, int | None]]:
    return [(pair.baseline, pair.other) for pair in against.devices]


def test_each_is_held_against_the_first(compared: Compared) -> None:
    unlike = [slower(OTHER, 1.05), slower(OTHER, 0.95), run_of((400, 568))]
    found = compared(BASELINE, OTHER, *unlike, BASELINE)
    assert verdicts(found) == ["no difference", "slower", "faster", "slower", None]
    same = [against.same_measurement for against in found.against_first]
    assert same == [False] * 4 + [True]
    assert [against.result for against in found.against_first] == [1, 2, 3, 4, 5]
    # Other batches are no unlikeness, as they are what is compared.
    assert all(not against.unlike for against in found.against_first)
    document = found.model_dump_json()
    assert Comparison.model_validate_json(document).model_dump_json() == document


NOISY = altered(known(DEVICES[0].profile), noise=0.5)


@cases(
    "field, changed, what, baseline, other",
    ("settings", {"model": "train.py:build"}, "model", "small", "train.py:build"),
    ("settings", {"xla": True}, "xla", "no", "yes"),
    ("settings", {"all_reduce": "nccl"}, "all-reduce", "auto", "nccl"),
    ("environment", {"gpubalance": "9.9"}, "gpubalance", None, "9.9"),
    ("environment", {"tensorflow": "2.0"}, "tensorflow", software().tensorflow, "2.0"),
    ("devices", {"uuid": "GPU-012"}, "GPU:0", "GeForce GTX 1080 Ti (SIM-0)", None),
    ("devices", {"name": "Other"}, "GPU:0 name", "GeForce GTX 1080 Ti", "Other"),
    ("devices", {"profile": None}, "GPU:0 has a profile", "yes", "no"),
    ("devices", {"profile": NOISY}, "GPU:0 noise", "0.02", "0.5"),
    ("model", {"parameters": 7}, "the model's parameters", "648", "7"),
)
def test_what_is_not_the_same_is_named(
    compared: Compared,
    field: str,
    changed: dict[str, Any],
    what: str,
    baseline: str | None,
    other: str | None,
) -> None:
    if field == "devices":
        first, *rest = OTHER.devices
        run = altered(OTHER, devices=(altered(first, **changed), *rest))
    else:
        run = inside(OTHER, field, **changed)
    unlike = compared(BASELINE, run).against_first[0].unlike
    (found,) = [one for one in unlike if one.what == what]
    assert baseline in (None, found.baseline)
    assert other in (None, found.other)


def test_a_device_is_the_same_under_another_index(compared: Compared) -> None:
    """A device is the same under another index and one without a UUID of its own by label."""
    swapped = [altered(DEVICES[1], index=0), altered(DEVICES[0], index=1)]
    turned = drawn_run(swapped, JOINT, (568, 820), seed=2)
    alone = drawn_run(DEVICES[:1], JOINT, (820,), seed=2)
    other, fewer = compared(BASELINE, turned, alone).against_first
    assert (pairs(other), other.unlike) == ([(0, 1), (1, 0)], ())
    assert pairs(fewer) == [(0, 0), (1, None)]
    (unlike,) = [(one.what, one.baseline, one.other) for one in fewer.unlike]
    assert unlike == ("GPU:1", "GeForce GTX 1080 (SIM-1)", "not in use")

    hidden = {"devices": tuple(altered(device, uuid="hidden") for device in DEVICES)}
    found = compared(altered(BASELINE, **hidden), altered(OTHER, **hidden))
    assert pairs(found.against_first[0]) == [(0, 0), (1, 1)]


def sampled(probe: Probe, factor: float = 1.0, seed: int = 0) -> Probe:
    """The probe with random step times like those of simulated devices, multiplied by `factor`."""

    def point(device: Device, one: CurvePoint) -> CurvePoint:
        times = ComputeTimes(known(device.profile), seed=noise_seed(seed, one.batch))
        samples = tuple(factor * times.next_s(one.batch) for _ in range(31))
        told = {"median": median(samples), "samples": samples, "at_s": samples}
        timed = inside(one, "step_time_s", **told)
        return inside(timed, "throughput", median=one.batch / median(samples))

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
    batches = [[point.batch for point in device.points] for device in found.devices]
    assert batches == [[516, 1032], [8, 356, 712]]
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
    expected = plan.predicted.throughput / BASELINE.throughput.median
    found = known(predicted.against_first[0].ratio).value
    assert found == pytest.approx(expected, rel=1e-5)

    proof = Balance(rounds=(), run=slower(OTHER, 0.9), solo_gap=None)
    measured = compared(BASELINE, altered(plan, balance=proof))
    run = measured.results[1]
    assert run.kind == "run"
    limits = [share.limit for share in plan.shares]
    assert [device.limit for device in run.devices] == limits
    assert verdicts(measured) == ["faster"]


def test_a_probe_is_not_held_against_a_run(compared: Compared) -> None:
    with pytest.raises(BadInput, match=r"0\.json is a run, .*1\.json is a probe"):
        compared(BASELINE, probe_of(DEVICES))


def test_what_makes_a_result_doubtful_goes_with_it(compared: Compared) -> None:
    codes = ("throttled", "throttled", "even-split-out-of-memory")
    warnings = tuple(Warning_(code=code, message="m", next="n") for code in codes)
    doubtful = altered(OTHER, complete=False, warnings=warnings)
    found = compared(BASELINE, doubtful).results[1]
    assert [warning.code for warning in found.warnings] == ["throttled"]
    assert not found.complete


def disturbed(run: Run, factor: float = 1.0) -> Run:
    """The run, slower by `factor`, on a machine whose other work comes and goes."""
    times = []
    for number, time_s in enumerate(run.step_time_s.samples):
        times.append(time_s * (1.3 if number // 5 % 2 else 1.0))
    return slower(inside(run, "step_time_s", samples=tuple(times)), factor)


def test_timings_of_a_machine_that_was_not_quiet_say_so(compared: Compared) -> None:
    quiet, busy = compared(BASELINE, disturbed(OTHER)).results
    assert (quiet.not_quiet, busy.not_quiet) == (None, "timings vary by 21 %")
    early = OTHER.step_time_s.samples[:20]
    late = tuple(1.2 * seconds for seconds in early)
    times = early + early + late[:8]
    shifted = inside(OTHER, "step_time_s", samples=times, at_s=times)
    seen = compared(BASELINE, shifted).results[1].not_quiet
    assert seen == "timings did not keep their level"
    told = r"but the machine was not quiet \(.*1\.json: timings vary by 21 %\)"
    with pytest.raises(Regression, match=told):
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
    slow = slower(OTHER, 1.5)
    short = inside(slow, "step_time_s", samples=(1.0, 1.1), at_s=(1.0, 2.1))
    other_work = inside(OTHER, "settings", model="probe")
    both = sampled(probe_of(DEVICES))
    one = sampled(probe_of(DEVICES[:1]), seed=1)
    for first, second, says in (
        (BASELINE, plan_of(), "was never run"),
        (BASELINE, BASELINE, "is the same measurement"),
        (BASELINE, short, "too few timings"),
        (BASELINE, other_work, "did not do the same work"),
        (both, one, "no batch size of GPU:1 in common"),
    ):
        with pytest.raises(GpubalanceError, match=says) as caught:
            check_regression(compared(first, second), 0.05)
        assert caught.value.exit_code == 4
        assert caught.value.remedy
