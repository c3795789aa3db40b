"""Rows 25 and 26: a plan for something else, and files that are not what they should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import BadInput
from gpubalance.jobs.plan.plan import plan
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_record, read_result
from gpubalance.settings.planning import PlanRequest
from tests.cli.program import QUICK_PAIR, ROOT
from tests.faults.machine import BRIEF, Machine, warning_of
from tests.jobs.probes import inside, probe_of
from tests.render.samples import BALANCE
from tests.stand_in import TWO_UNLIKE_GPUS

PAIR = simulated_devices(QUICK_PAIR)[0]
FOUR = str(ROOT / "configs" / "four-unlike.toml")
THREE = simulated_devices(FOUR)[0][:3]
PROBE = probe_of(PAIR)
PLAN = plan(PROBE, PAIR, PlanRequest(global_batch=96, accumulate=1))


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(PLAN.model_dump_json())
    return str(path)


def test_25_for_other_devices_it_is_refused(tmp_path: Path, plan_file: str) -> None:
    """A plan for other devices is refused with the difference unless forced."""
    machine = Machine(tmp_path)
    refused = machine.refuses(7, "run", "--simulate", FOUR, "--plan", plan_file)
    assert "GPU:0 (Quick 3, SIM-0) has another name" in refused.stderr
    assert "--force" in refused.stderr
    forced = ("run", "--simulate", FOUR, "--plan", plan_file, "--force")
    result = machine.result(*forced, *BRIEF)
    assert tuple(result["batches"]) == PLAN.batches
    told = warning_of(result, "plan-forced")["message"]
    assert "has another name: Unlike A, not Quick 3" in told


def test_25_on_other_uuids_indices_count(tmp_path: Path, plan_file: str) -> None:
    machine = Machine(tmp_path, gpus=TWO_UNLIKE_GPUS)
    refused = machine.refuses(2, "run", "--plan", plan_file)
    assert "is a plan for simulated devices" in refused.stderr
    assert "--force runs the plan on this machine's GPUs" in refused.stderr
    found = machine.result("run", "--plan", plan_file, "--force", *BRIEF)
    assert [device["index"] for device in found["devices"]] == [0, 1]
    one = Machine(tmp_path, gpus="gpu 0 uuid GPU-0")
    few = one.refuses(7, "run", "--plan", plan_file, "--force")
    assert "the plan needs 2 devices, and there are 1 here" in few.stderr


def test_25_a_plan_for_more_devices_can_not_be_forced(tmp_path: Path) -> None:
    path = tmp_path / "of-three.json"
    three = plan(probe_of(THREE), THREE, PlanRequest(global_batch=96, accumulate=1))
    path.write_text(three.model_dump_json())
    machine = Machine(tmp_path)
    words = ("run", "--simulate", QUICK_PAIR, "--plan", str(path))
    assert "--force" not in machine.refuses(7, *words).stderr


def test_25_another_model_of_that_name_is_refused_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(inside(PLAN, "model", parameters=649).model_dump_json())
    command = ("run", "--simulate", QUICK_PAIR, "--plan", str(path), *BRIEF)
    machine = Machine(tmp_path)
    assert "649 parameters" in machine.refuses(7, *command).stderr
    machine.runs(*command, "--force")


def at(document: Any, path: str, value: Any) -> Any:
    """The document with another value at a path such as `predicted.throughput` or `batches.0`."""
    changed = json.loads(json.dumps(document))
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = changed
    for part in way:
        place = place[part]
    place[last] = value
    return changed


NAN = float("nan")
INFINITE = float("inf")
WRONG_IN_A_PLAN: dict[str, list[Any]] = {
    "batches.0": [-8, 10**12, 8.5],
    "batches": [[96], [0, 0]],
    "micro_batches.1": [7],
    "global_batch": [97],
    "sync_s": [NAN, INFINITE],
    "settings.surprise": [1],
    "shares": [[]],
}
WRONG_IN_A_PROBE: dict[str, list[Any]] = {
    "probes.0.curve.0.step_time_s.median": [0.0],
    "probes.0.curve.0.step_time_s.samples": [[NAN]],
    "probes.0.device": [9, -1],
    "probes.0.step_time_model.beta_s": [-INFINITE],
    "batch_multiple": [0, 10**18],
    "devices.1.uuid": ["SIM-0"],
}


# Each has what does not fit together, and what is said of it; {} is its place.
WRONG_IN_A_BALANCE = [
    ("batches", [1], "micro_batches: each batch needs one micro-batch size: 2 given"),
    ("balance.run.replicas.0.device", 7, "{}: there is no device 7"),
    ("balance.run.step_time_s.median", 0, "{} 0 should be greater than 0.000000000001"),
    ("balance.run.step_time_s.at_s", [1.0], "{}: 1 of "),
    ("balance.run.sync_s", 1e300, "{} 1e+300 should be less than or equal to 10000"),
    ("balance.run.replicas.0.micro_batch", 0, "{} 0 should be greater than or "),
    ("balance.run.baselines.even.replicas", [], "{}: "),
    ("balance.solo_gap.slowdown", [], "{}: 0 of 2 devices"),
    ("shares.0.device", 1, "shares: do not match batches"),
    ("left_out", [{"device": 2, "gain": None}], "there is no device 2"),
    ("devices.1.uuid", "SIM-0", "devices: two have the same UUID"),
    ("micro_batches", [0, 0], "{}: a micro-batch must have from 1 to its batch's "),
    ("micro_batches", [], "micro_batches: 0 of 2 devices"),
    ("shares.0.binds", "x", "{} 'x' should be 'speed', 'memory', 'granularity', 'gl"),
    ("devices", [], "{}: Tuple should have at least 1 item after validation, not 0"),
    ("predicted.throughput", None, "{} None should be a valid number"),
]
WRONG: list[Any] = [(read_record(BALANCE, Plan), *row) for row in WRONG_IN_A_BALANCE]
for result, places in ((PLAN, WRONG_IN_A_PLAN), (PROBE, WRONG_IN_A_PROBE)):
    for place, values in places.items():
        WRONG += [(result, place, value, "") for value in values]


def name_of(value: Any) -> str:
    return value.kind if isinstance(value, Plan | Probe) else str(value)[:30]


@pytest.mark.parametrize(("result", "place", "value", "says"), WRONG, ids=name_of)
def test_26_what_is_wrong_in_a_result_is_named_with_its_place(
    tmp_path: Path, result: Plan | Probe, place: str, value: Any, says: str
) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(at(json.loads(result.model_dump_json()), place, value)))
    kind: type[Any] = type(result)
    with pytest.raises(BadInput) as caught:
        read_record(path, kind)
    told = caught.value.message
    assert str(path) in told
    assert says.format(place) in told
    assert place.split(".")[0] in told


def test_26_a_truncated_file_is_no_result(tmp_path: Path) -> None:
    whole = PLAN.model_dump_json()
    path = tmp_path / "plan.json"
    for cut in range(0, len(whole), 97):
        path.write_text(whole[:cut])
        with pytest.raises(BadInput, match="is not JSON"):
            read_result(path)


A_PLAN = '{"kind": "plan", "schema_version": 1, "created": '
NONSENSE: dict[str, str | bytes] = {
    "lists": "[" * 200_000,
    "objects": A_PLAN + '{"a":' * 100_000,
    "as deep as may be": A_PLAN + "[" * 150 + "]" * 150 + "}",
    "a number": '{"kind": "plan", "schema_version": ' + "9" * 100_000 + "}",
    "no text": "\ud800".encode("utf-8", "surrogatepass"),
    "null": "null",
    "empty": "",
}


@pytest.mark.parametrize("content", NONSENSE.values(), ids=NONSENSE)
def test_26_nesting_is_refused(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInput):
        read_result(path)
