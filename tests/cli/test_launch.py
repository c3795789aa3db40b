"""`launch`: a script in a process for each device of a plan. What a script does with it is tested in training/."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from gpubalance.errors import PlanMismatch, UsageError
from gpubalance.settings.cluster import Cluster
from gpubalance.training.load import load_plan
from tests.cli.program import ROOT, children_of, gpubalance, lines_until, start
from tests.training.test_hosts import TWO_HOSTS, write_plan
from tests.workers.test_process import gone

PAIR = str(ROOT / "tests" / "render" / "data" / "pair-balance.json")
SCRIPT = """
import json, os, sys, time
task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
print("given", sys.argv[1:], "as", task.get("index"))
print("to stderr", file=sys.stderr)
if "fail" in sys.argv:
    sys.exit(5) if task["index"] == 1 else time.sleep(600)
if "wait" in sys.argv:
    time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_each_device_has_a_process_that_knows_its_place(script: str, tmp_path: Path) -> None:
    done = gpubalance("launch", str(write_plan(tmp_path)), script, "--gpus", "0 1", "-o", "x")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"{label} | given ['--gpus', '0 1', '-o', 'x'] as {rank}"
        for rank, label in enumerate(("alpha:0", "alpha:1", "beta:0"))
    ]
    assert done.stderr.count("| to stderr") == 3


def test_the_devices_of_one_host_are_one_process(script: str) -> None:
    done = gpubalance("launch", PAIR, script)
    assert done.stdout == "GPU:0, GPU:1 | given [] as None\n"


def test_one_that_fails_ends_all_with_its_exit_code(script: str, tmp_path: Path) -> None:
    done = gpubalance("launch", str(write_plan(tmp_path)), script, "fail")
    assert done.returncode == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_command(number: int, script: str, tmp_path: Path) -> None:
    process = start("launch", str(write_plan(tmp_path)), script, "wait")
    for _ in range(3):
        lines_until(process, "to stderr")
    children = [child.pid for child in children_of(process.pid)]
    assert len(children) == 3
    os.kill(process.pid, number)
    process.communicate(timeout=30)
    assert process.returncode == (143 if number == signal.SIGTERM else -number)
    end = time.monotonic() + 10
    while not all(map(gone, children)) and time.monotonic() < end:
        time.sleep(0.05)
    assert all(map(gone, children))


def test_a_script_that_is_not_there() -> None:
    done = gpubalance("launch", PAIR, "nowhere.py")
    assert (done.returncode, done.stdout) == (4, "")
    assert "there is no script nowhere.py" in done.stderr


def test_a_plan_for_hosts_wants_a_process_for_each_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_plan(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(UsageError, match="gpubalance launch PLAN SCRIPT"):
        load_plan(path, simulate=TWO_HOSTS)
    cluster = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(
        PlanMismatch, match="TF_CONFIG has 2 workers, and the split 3 devices: alpha:0, alpha:1, beta:0"
    ):
        load_plan(path, simulate=TWO_HOSTS)
    cluster["cluster"] = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    split = load_plan(path, simulate=TWO_HOSTS)
    assert split._cluster == Cluster(addresses=("a:1", "b:2", "c:3"), rank=1)
    assert not split.is_first
