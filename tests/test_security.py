"""What SECURITY.md promises, each a test.

It is about the program as a user runs it, and about what a file may not make it do.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.plan.plan import plan
from gpubalance.results.common import Environment
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.settings import Settings
from tests.cli.program import QUICK_PAIR, ROOT, gpubalance, here, start, typed
from tests.jobs.probes import probe_of
from tests.support.in_process import Program
from tests.support.known import known
from tests.support.python import python

MODEL = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
import keras
def build():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    return path


def plan_for(folder: Path, model: str) -> Path:
    """A plan for the quick pair that names a model."""
    devices, _ = simulated_devices(QUICK_PAIR)
    probe = probe_of(devices).model_copy(update={"settings": Settings(model=model)})
    made = plan(probe, devices, PlanRequest(global_batch=48, sync_s=0.0))
    path = folder / "plan.json"
    path.write_text(made.model_copy(update={"model": None}).model_dump_json())
    return path


@pytest.mark.parametrize(
    "kind", ["{file}:build", "mine:build", "{folder}/net.keras", "{folder}/net.h5"]
)
def test_a_plan_starts_no_code(tmp_path: Path, model: Path, kind: str) -> None:
    path = plan_for(tmp_path, kind.format(file=model, folder=tmp_path))
    run = ("run", "--simulate", QUICK_PAIR, "--plan", str(path))
    done = here(*run, cwd=tmp_path, code=4)
    assert "does not run code or open files just because a plan names" in done.stderr
    assert "--model" in done.stderr
    assert not model.with_suffix(".ran").exists()


def connections(processes: list[psutil.Process]) -> Iterator[Any]:
    for process in processes:
        try:
            yield from process.net_connections(kind="inet")
        except psutil.NoSuchProcess:
            continue


@pytest.mark.full
def test_a_run_listens_to_nobody_and_calls_nobody(tmp_path: Path, model: Path) -> None:
    """And it is the one of a plan for a user's own model, which the command line names."""
    path = plan_for(tmp_path, f"{model}:build")
    words = typed("run --duration 0.3 --windows 3 --baseline none --json --simulate")
    program = start(*words, QUICK_PAIR, f"--plan={path}", f"--model={model}:build")
    seen = []
    lines = []
    for line in known(program.stderr):
        lines.append(line)
        parent = psutil.Process(program.pid)
        processes = [parent, *parent.children(recursive=True)]
        seen += list(connections(processes))
        assert "window" not in line or len(processes) > 1
    out, _ = program.communicate(timeout=60)
    assert program.returncode == 0, lines
    assert any("window" in line for line in lines)
    assert json.loads(out)["settings"]["model"] == f"{model}:build"
    assert seen == []


def test_a_results_environment_is_on_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (
        "gpubalance python platform cpu cpu_count tensorflow keras cuda cudnn driver"
    )
    assert set(Environment.model_fields) == set(listed.split())
    secrets = {"SECRET_TOKEN": "d41d8cd98f00b204", "USER": "somebody-here"}
    secrets["HOSTNAME"] = "a-host-name"
    words = ("devices", "--simulate", QUICK_PAIR, "--json")
    done = gpubalance(*words, code=0, environment=secrets)
    for secret in (*secrets.values(), os.uname().nodename):
        assert secret not in done.stdout


def test_names_of_a_table_are_cleaned(tmp_path: Path, in_process: Program) -> None:
    path = tmp_path / os.fsdecode(b"res\x1b]0;owned\x07net\xff.csv")
    name = "\x1b]0;owned\x07\x1b[2Jcard\u202e"
    lines = ("device,batch,seconds", f"{name},64,0.05", f"{name},128,0.08")
    path.write_text("\n".join(lines), encoding="utf-8")
    done = in_process(["plan", "--curve", str(path)])
    done.check("plan")
    assert "model resnet\n" in done.out
    assert "GPU:0   card" in done.out
    path.write_text("\n".join([*lines, "card,0,1"]), encoding="utf-8")
    refused = in_process(["plan", "--curve", str(path)])
    refused.check("plan")
    assert refused.code == 4
    assert "resnet.csv, line 4: batch" in refused.err


def audit(folder: Path, answer: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs scripts/check --audit's own part with a pip-audit that gives this answer."""
    package = folder / "pip_audit"
    package.mkdir()
    (package / "__init__.py").touch()
    ends = f"print({answer!r})\nraise SystemExit({code})\n"
    (package / "__main__.py").write_text(ends)
    path = os.pathsep.join([str(folder), str(ROOT)])
    return python("-m", "scripts.audit", env={"PYTHONPATH": path})


def answer_with(*faults: object) -> str:
    audited = {"name": "a", "version": "1", "vulns": faults}
    return json.dumps({"dependencies": [audited]})


FAULT = {"id": "CVE-1", "fix_versions": ["2"]}
ANSWERS = [
    ("no network", 1, 0, "nothing was audited"),
    (answer_with(), 0, 0, "1 package, none with a known"),
    (answer_with(FAULT), 1, 1, "a 1: CVE-1, mended in 2"),
]


@pytest.mark.parametrize(("answer", "code", "expected", "says"), ANSWERS)
def test_an_audit_fails_for_what_it_finds_and_for_nothing_else(
    tmp_path: Path, answer: str, code: int, expected: int, says: str
) -> None:
    done = audit(tmp_path, answer, code)
    assert done.returncode == expected, done.stderr
    assert says in done.stdout
