"""Rows 25, 26, 31, 32 and 34: files that are not what they should be, or can't be written; names that hold anything."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import BadInput
from gpubalance.jobs.plan.plan import plan
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_record, read_result
from gpubalance.settings.requests import PlanRequest
from gpubalance.workers.log import LONGEST_BYTES
from tests.cli.program import PROGRAM, QUICK_PAIR, ROOT, gpubalance
from tests.faults.machine import BRIEF, Machine
from tests.jobs.probes import probe_of
from tests.render.samples import BALANCE
from tests.stand_in import TWO_UNLIKE_GPUS

PAIR = simulated_devices(QUICK_PAIR)[0]
FOUR = str(ROOT / "configs" / "four-unlike.toml")
PROBE = probe_of(PAIR)
PLAN = plan(PROBE, PAIR, PlanRequest(global_batch=96, accumulate=1))


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(PLAN.model_dump_json())
    return str(path)


def test_25_a_plan_for_other_devices_is_refused_with_the_difference_unless_forced(
    tmp_path: Path, plan_file: str
) -> None:
    machine = Machine(tmp_path)
    refused = machine.refuses(7, "run", "--simulate", FOUR, "--plan", plan_file)
    assert "GPU:0 (Quick 3, SIM-0) has another name" in refused.stderr
    assert "--force" in refused.stderr
    result = machine.result("run", "--simulate", FOUR, "--plan", plan_file, "--force", *BRIEF)
    assert tuple(result["batches"]) == PLAN.batches
    (warning,) = [warning for warning in result["warnings"] if warning["code"] == "plan-forced"]
    assert "has another name: Unlike A, not Quick 3" in warning["message"]


def test_25_on_other_uuids_each_place_is_taken_by_its_index(tmp_path: Path, plan_file: str) -> None:
    machine = Machine(tmp_path, gpus=TWO_UNLIKE_GPUS)
    refused = machine.runs("run", "--plan", plan_file)
    assert refused.returncode == 2
    assert "is a plan for simulated devices" in refused.stderr
    assert "--force runs it on the GPUs" in refused.stderr
    found = machine.result("run", "--plan", plan_file, "--force", *BRIEF)
    assert [device["index"] for device in found["devices"]] == [0, 1]
    few = Machine(tmp_path, gpus="gpu 0 uuid GPU-0").runs("run", "--plan", plan_file, "--force")
    assert few.returncode == 7
    assert "is for 2 devices, and there are 1 here" in few.stderr


def test_25_another_model_of_that_name_is_refused_unless_forced(tmp_path: Path) -> None:
    assert PLAN.model is not None
    other = PLAN.model_copy(update={"model": PLAN.model.model_copy(update={"parameters": 649})})
    (tmp_path / "other.json").write_text(other.model_dump_json())
    command = ("run", "--simulate", QUICK_PAIR, "--plan", str(tmp_path / "other.json"), *BRIEF)
    refused = Machine(tmp_path).runs(*command)
    assert refused.returncode == 7
    assert "649 parameters" in refused.stderr
    assert Machine(tmp_path).runs(*command, "--force").returncode == 0


def at(document: Any, path: str, value: Any) -> Any:
    """The document with another value at a path such as `predicted.throughput` or `batches.0`."""
    changed = json.loads(json.dumps(document))
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = changed
    for part in way:
        place = place[part]
    place[last] = value
    return changed


NAN, INFINITE = float("nan"), float("inf")
WRONG_IN_A_PLAN: dict[str, list[Any]] = {
    "batches.0": [-8, 10**12, 8.5],
    "batches": [[96], [0, 0]],
    "micro_batches.1": [7],
    "global_batch": [97],
    "sync_s": [NAN, INFINITE],
    "settings.surprise": [1],
    "kind": ["probe"],
    "schema_version": [2, "1"],
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


# What does not fit together, with what is said of it; {} is its place.
WRONG_IN_A_BALANCE = [
    ("batches", [1], "micro_batches: each batch needs one micro-batch, not 2 for 1"),
    ("balance.run.replicas.0.device", 7, "{}: there is no device 7"),
    ("balance.run.step_time_s.median", 0, "{} 0 should be greater than 0.000000000001"),
    ("balance.run.step_time_s.at_s", [1.0], "{}: 1 of "),
    ("balance.run.sync_s", 1e300, "{} 1e+300 should be less than or equal to 10000"),
    ("balance.run.replicas.0.micro_batch", 0, "{} 0 should be greater than or "),
    ("balance.run.baselines.even.replicas", [], "{}: "),
    ("balance.solo_gap.slowdown", [], "{}: 0 of 2 devices"),
    ("shares.0.device", 7, "{}: there is no device 7"),
    ("devices.1.uuid", "SIM-0", "devices: two have the same UUID"),
    ("kind", "plans", "is a plans, not a plan"),
    ("micro_batches", [0, 0], "micro_batches: micro-batches must be from 1 to their batch, not 0 of "),
    ("micro_batches", [], "micro_batches: 0 of 2 devices"),
    ("shares.0.binds", "x", "{} 'x' should be 'speed', 'memory', 'granularity', 'global batch', "),
    ("devices", [], "devices: Tuple should have at least 1 item after validation, not 0"),
    ("predicted.throughput", None, "{} None should be a valid number"),
]
WRONG_IN_A_MODEL: list[tuple[dict[str, object], str]] = [
    ({"alpha_s": 0, "beta_s": 0}, "a step that takes no time"),
    ({"curve": [[8, 1], [8, 2]]}, "probes.0.step_time_model.curve: its batches must rise"),
    ({"planned_with": "curve"}, "probes.0.step_time_model.curve: there is none"),
]
LINE: dict[str, object] = {"alpha_s": 0.1, "beta_s": 0.1, "residual": 0.0, "planned_with": "line", "curve": None}
WRONG = [
    *((PROBE, "probes.0.step_time_model", LINE | wrong, says) for wrong, says in WRONG_IN_A_MODEL),
    *((PLAN, place, value, "") for place, values in WRONG_IN_A_PLAN.items() for value in values),
    *((PROBE, place, value, "") for place, values in WRONG_IN_A_PROBE.items() for value in values),
    *((read_record(BALANCE, Plan), *wrong) for wrong in WRONG_IN_A_BALANCE),
]


@pytest.mark.parametrize(
    ("result", "place", "value", "says"),
    WRONG,
    ids=lambda value: value.kind if isinstance(value, Plan | Probe) else str(value)[:30],
)
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
    assert place.split(".")[0] in told or (place == "kind" and "is a p" in told)


def test_26_a_truncated_file_is_no_result(tmp_path: Path) -> None:
    whole = PLAN.model_dump_json()
    path = tmp_path / "plan.json"
    for cut in range(0, len(whole), 97):
        path.write_text(whole[:cut])
        with pytest.raises(BadInput, match="is not JSON"):
            read_result(path)


@pytest.mark.parametrize(
    "content",
    [
        "[" * 200_000,
        '{"kind": "plan", "schema_version": 1, "created": ' + '{"a":' * 100_000,
        '{"kind": "plan", "schema_version": 1, "created": ' + "[" * 150 + "]" * 150 + "}",
        '{"kind": "plan", "schema_version": ' + "9" * 100_000 + "}",
        '{"kind": ["plan"], "schema_version": 1}',
        "\ud800".encode("utf-8", "surrogatepass"),
        "null",
        "",
    ],
    ids=["lists", "objects", "as deep as may be", "a number", "a kind", "no text", "null", "empty"],
)
def test_26_nesting_and_nonsense_are_refused(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInput):
        read_result(path)


def variables() -> dict[str, str]:
    """The variables of a user, who hides no GPU."""
    return {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}


def without_room(arguments: list[str], machine: Machine, most: int) -> subprocess.CompletedProcess[str]:
    """Runs the program under a real limit on file sizes, to which a full disk or a quota looks the same."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    return subprocess.run(
        [PROGRAM, *arguments],
        # Python would keep what it compiles too, cut at the limit, and every later program would fail to read that.
        env=variables() | machine.environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("mount", "says"),
    [("size=64k", "No space left on device"), ("ro", "Read-only file system")],
    ids=["full", "read-only"],
)
def test_31_a_disk_that_takes_nothing_is_found_before_measuring(tmp_path: Path, mount: str, says: str) -> None:
    """A real one: a file system in memory that only this program sees."""
    folder = tmp_path / "disk"
    folder.mkdir()
    private = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    mounted = f"mount -t tmpfs -o {mount} none {folder}"
    if shutil.which("unshare") is None or subprocess.run([*private, mounted], capture_output=True).returncode:
        pytest.skip("this machine lets no user mount a file system of their own")
    machine = Machine(tmp_path)
    done = subprocess.run(
        [*private, f"{mounted} && exec {PROGRAM} run -o {folder}/run.json"],
        env=variables() | machine.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"error: can't write -o {folder}/run.json: {says}")


def test_31_one_that_fills_while_it_is_measured_leaves_the_result_on_stdout(tmp_path: Path) -> None:
    """The folder is gone by the time it is written to."""
    folder = tmp_path / "results"
    folder.mkdir()
    steps = f"""
import shutil
def step(devices, batches, number):
    if number == 8:
        shutil.rmtree({str(folder)!r})
"""
    done = Machine(tmp_path, steps).runs("run", *BRIEF, "-o", str(folder / "run.json"), "--json", "--quiet")
    assert done.returncode == 3
    assert f"error: can't write {folder / 'run.json'}: No such file" in done.stderr
    assert json.loads(done.stdout)["complete"] is True


def test_31_a_journal_that_can_not_be_written_ends_the_keeping_and_not_the_probe(tmp_path: Path) -> None:
    done = without_room(["probe", "--max-batch", "8", "--duration", "0.2", "--json"], Machine(tmp_path), 256)
    assert done.returncode == 0, done.stderr
    assert "can't write the journal" in done.stderr
    assert "continuing, but nothing more is kept for --resume" in done.stderr
    assert json.loads(done.stdout)["complete"] is True
    (tmp_path / "file").write_text("")
    nowhere = Machine(tmp_path, XDG_STATE_HOME=str(tmp_path / "file"), TMPDIR=str(tmp_path))
    assert nowhere.runs("run", *BRIEF, "--gpus", "0").returncode == 0


def test_32_an_output_file_that_exists_is_not_replaced_unasked(tmp_path: Path) -> None:
    path = tmp_path / "results" / "run.json"
    path.parent.mkdir()
    path.write_text("mine")
    machine = Machine(tmp_path)
    done = machine.runs("probe", "-o", str(path))
    assert (done.returncode, path.read_text()) == (2, "mine")
    assert "--overwrite" in done.stderr
    assert machine.runs("run", *BRIEF, "-o", str(path), "--overwrite").returncode == 0
    assert json.loads(path.read_text())["kind"] == "run"
    assert [one.name for one in path.parent.iterdir()] == ["run.json"]


NASTY = "$(touch ran)\x1b[31m[red]bold[/red]<script>alert(1)</script>\x1b]0;owned\x07\u202e"
SHOWN = "$(touch ran)[red]bold[/red]<script>alert(1)</script>"


def test_34_a_name_with_escapes_and_markup_is_shown_as_it_is_and_a_long_one_fits(tmp_path: Path) -> None:
    profile = tmp_path / "nasty.toml"
    profile.write_text(f"[[device]]\nname = {json.dumps(NASTY)}\nalpha_s = 0.01\nbeta_s = 0.001\n")
    machine = Machine(tmp_path)
    for command in (("run", *BRIEF), ("devices",)):
        done = machine.runs(*command, "--simulate", str(profile))
        assert done.returncode == 0, done.stderr
        assert "[red]" in done.stdout
        assert "\x1b" not in done.stdout + done.stderr
        assert "\u202e" not in done.stdout + done.stderr
    listed = machine.runs("devices", "--simulate", str(profile), "--json")
    assert json.loads(listed.stdout)["simulated"][0]["name"] == SHOWN
    long = TWO_UNLIKE_GPUS.replace("NVIDIA GeForce GTX 1080 Ti", f"[red]{'x' * 10_000}")
    done = Machine(tmp_path, gpus=long).runs("run", *BRIEF)
    assert done.returncode == 0, done.stderr
    assert "[red]xxx" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_32_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    probe = tmp_path / "probe.json"
    probe.write_text(PROBE.model_dump_json())
    done = gpubalance("plan", str(probe), "-o", str(link), "--overwrite")
    assert done.returncode == 0, done.stderr
    assert link.is_symlink()
    assert json.loads(real.read_text())["kind"] == "plan"


@pytest.mark.parametrize("command", [("run", *BRIEF), ("probe", "--max-batch", "16", "--duration", "0.1")])
def test_32_a_file_that_comes_meanwhile_is_not_replaced(tmp_path: Path, command: tuple[str, ...]) -> None:
    path, steps_told = tmp_path / "result.json", tmp_path / "steps"
    steps = f"""
import pathlib
def step(devices, batches, number):
    if number == 8:
        pathlib.Path({str(path)!r}).write_text("another's")
    pathlib.Path({str(steps_told)!r}).touch()
"""
    machine = Machine(tmp_path, steps)
    done = machine.runs(*command, "-o", str(path), "--json", "--quiet")
    assert done.returncode == 3
    assert "was made by another program meanwhile" in done.stderr
    assert "--resume continues it" in done.stderr
    measured = json.loads(done.stdout)
    assert measured["complete"] is True
    assert path.read_text() == "another's"
    steps_told.unlink()
    again = machine.runs(*command, "-o", str(tmp_path / "other.json"), "--quiet", "--resume")
    assert again.returncode == 0, again.stderr
    resumed = json.loads((tmp_path / "other.json").read_text())
    if command[0] == "run":
        assert resumed["throughput"] == measured["throughput"]
    else:
        assert [one["curve"] for one in resumed["probes"]] == [one["curve"] for one in measured["probes"]]
        assert resumed["environment"] == measured["environment"]
        assert resumed["model"] == measured["model"]
        assert not steps_told.exists()


def test_32_what_goes_on_replaces_its_own_unfinished_result_and_no_finished_one(tmp_path: Path) -> None:
    path, mark = tmp_path / "run.json", tmp_path / "mark"
    steps = f"""
import os, pathlib, signal
def step(devices, batches, number):
    mark = pathlib.Path({str(mark)!r})
    if number > 40 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
    machine = Machine(tmp_path, steps)
    command = ("run", "--windows", "9", "--duration", "0.2", "-o", str(path), "--json")
    ended = machine.runs(*command)
    assert ended.returncode == 6
    assert "--resume continues it" in ended.stderr
    assert json.loads(path.read_text())["complete"] is False
    assert machine.runs(*command).returncode == 2
    machine.refuses(2, "probe", "--max-batch", "8", "-o", str(path), "--resume")
    machine.refuses(2, *command, "--seed", "5", "--resume")
    assert machine.runs(*command, "--resume").returncode == 0
    assert json.loads(path.read_text())["complete"] is True
    assert machine.runs(*command, "--resume").returncode == 2


def test_32_a_deleted_current_folder_is_one_error(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd {gone} && rmdir {gone} && exec "{sys.executable}" -m gpubalance run --simulate 2 --windows 1'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-2:] == [
        "error: the current folder was deleted",
        "  → change into one that exists: cd ~",
    ]


def test_32_what_a_model_prints_is_bounded(tmp_path: Path) -> None:
    steps = """
def step(devices, batches, number):
    print("x" * (4 << 20))
"""
    found = Machine(tmp_path, steps, XDG_STATE_HOME=str(tmp_path / "state")).result("run", *BRIEF)
    assert found["steps"] * 4 << 20 > LONGEST_BYTES
    (log,) = (tmp_path / "state").rglob("*.log")
    assert 0 < log.stat().st_size < 2 * LONGEST_BYTES
