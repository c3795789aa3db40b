"""`gpubalance independent` as a user runs it, with real workers.

Their engine takes as long as profiles say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.saved import save
from gpubalance.results.independent import Independent
from tests.cli.program import (
    QUICK_PAIR,
    ROOT,
    SHORT,
    TINY,
    gpubalance,
    here,
    interrupted,
    lines_until,
    one_line,
    start,
)
from tests.jobs.probes import probe_of
from tests.stand_in import engine
from tests.support.cases import cases
from tests.support.in_process import Program
from tests.support.known import known

pytestmark = pytest.mark.usefixtures("stand_in")
PAIR = ("independent", "--simulate", QUICK_PAIR, "--batches", "120", "80")
# As the engine counts, which does not wait
LONG = ("--windows", "2", "--duration", "5")
# In the time that these take, not at once.
SLOWLY = """
import time
def step(devices, batches, number):
    return 0.02
def took(seconds):
    time.sleep(seconds)
"""


def result_of(*arguments: str, environment: Mapping[str, str] = {}) -> dict[str, Any]:
    done = here(*arguments, "--json", "--quiet", code=0, environment=environment)
    Independent.model_validate_json(done.stdout)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def contended(folder: Path, factor: float, name: str = "gtx1080ti-gtx1080") -> str:
    """That pair, whose devices take that many times as long while both compute."""
    profile = folder / "contended.toml"
    text = (ROOT / "configs" / f"{name}.toml").read_text(encoding="utf-8")
    slower = text.replace("[joint]", f"[joint]\ncontention = {factor}")
    profile.write_text(slower, encoding="utf-8")
    return str(profile)


def test_each_device_gives_at_once_what_contention_leaves(tmp_path: Path) -> None:
    """Each device gives at once what contention leaves of it alone and that is compared."""
    alone = [1024 / (0.04898 + 0.00069634 * 1024), 512 / (0.0212 + 0.00107 * 512)]
    told = []
    for factor in (1.0, 1.1):
        pair = contended(tmp_path, factor)
        asked = ("independent", "--simulate", pair, "--batches", "1024", "512", *LONG)
        done = here(*asked, "-o", f"{factor}.json", "--quiet", code=0, cwd=tmp_path)
        told.append(one_line(done.stdout))
        result = json.loads((tmp_path / f"{factor}.json").read_text())
        for replica, rate in zip(result["replicas"], alone, strict=True):
            assert replica["solo_throughput"] == pytest.approx(rate)
            assert replica["throughput"] == pytest.approx(rate / factor)
            assert replica["contention"] == pytest.approx(1 - 1 / factor, abs=1e-6)
        assert result["solo_sum"] == pytest.approx(sum(alone))
        assert result["throughput"]["median"] == pytest.approx(sum(alone) / factor)
        assert (result["kind"], result["complete"]) == ("independent", True)
        assert result["joint"] is None
        # 1.26 GiB and 9.1 MiB a sample, without what a joint run takes more.
        memory = [one["memory_peak_bytes"] / 2**30 for one in result["replicas"]]
        sizes = [1.26 + batch * 9.1 / 1024 for batch in (1024, 512)]
        assert memory == pytest.approx(sizes)
    assert ["no contention found" in line for line in told] == [True, False]
    longer = "gives 9.1 % less than alone (9.1 to 9.1): its steps take 10.0 % longer"
    assert [line.count(longer) for line in told] == [0, 2]

    compared = here("compare 1.0.json 1.1.json --fail-slower 5%", code=9, cwd=tmp_path)
    assert "1.1.json is slower than 1.0.json" in compared.stdout
    report = "report 1.0.json 1.1.json --html page.html --csv"
    csv = here(report, code=0, cwd=tmp_path).stdout
    assert "2 devices at once: " in (tmp_path / "page.html").read_text()
    assert '"1.1.json","independent"' in csv


def test_devices_that_slow_each_other_down_are_warned_of(tmp_path: Path) -> None:
    for factor in (1.05, 1.5):
        pair = contended(tmp_path, factor)
        result = result_of(f"independent --simulate {pair} --batches 64 64", *LONG)
        told = [one["message"] for one in result["warnings"]]
        slower = [text for text in told if "slow each other down" in text]
        assert len(slower) == (factor > 1.1)
        assert all("1.5 ×" in text for text in slower)


def test_what_counts_was_measured_at_once_also_in_tensorboard(tmp_path: Path) -> None:
    """By the program's clock, a device's timings fit into the time in which both were measured."""
    logs = tmp_path / "logs"
    traces = tmp_path / "traces"
    both = ("--tensorboard", str(logs), "--trace", str(traces))
    result = result_of(*PAIR, *SHORT, *both, environment=engine(tmp_path, SLOWLY))
    names = {f"{how}-GPU-{i}" for how in ("solo", "at-once") for i in (0, 1)}
    assert {path.name for path in logs.glob("*/*") if path.is_dir()} == names
    assert len(list(traces.glob("plugins/profile/*/*.xplane.pb"))) == 2
    for replica in result["replicas"]:
        times = replica["step_time_s"]
        timings_s = [sample * times["steps_per_sample"] for sample in times["samples"]]
        # One that both did not measure would be too much; some milliseconds come late on a busy machine.
        assert sum(timings_s) < result["overlap_s"] + min(timings_s) / 2
        # They take turns, each alone first.
        assert replica["solo_step_time_s"]["at_s"][0] < times["at_s"][0]


def test_without_batches_each_takes_its_smallest_within_5_percent() -> None:
    """Without batches each takes its smallest within 5 percent by the latest probe."""
    devices = simulated_devices(QUICK_PAIR)[0]
    asked = ("independent", "--simulate", QUICK_PAIR, *SHORT)
    assert [one["batch"] for one in result_of(*asked)["replicas"]] == [64, 64]
    probe = probe_of(devices[:1])
    save(probe)
    sensible = known(probe.probes[0].sensible)
    found = [one["batch"] for one in result_of(*asked)["replicas"]]
    assert found == [sensible.batch, 64]


def test_unlike_models_are_trained_one_a_device_and_told_apart(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def net(): ...")
    other = f"{tmp_path / 'other.py'}:net"
    asked = f"independent --simulate 2 --model {TINY} {other}"
    done = here(asked, *SHORT, "--json", code=0)
    result = json.loads(done.stdout)
    assert [one["model"] for one in result["replicas"]] == [TINY, other]
    assert result["settings"]["model"] == f"{TINY} {other}"
    assert result["model"] is None
    assert f"building {TINY} and {other} on CPU:0 CPU, CPU:1 CPU" in done.stderr


@cases(
    "model, code, says",
    ("smal", 4, "there is no model 'smal': did you mean small?"),
    ("missing.py:net", 2, "--model: the file missing.py does not exist"),
)
def test_a_model_that_can_not_be_meant_is_refused_also_by_a_dry_run(
    in_process: Program, model: str, code: int, says: str
) -> None:
    words = ["independent", "--simulate", "2", "--model", "small", model, "--dry-run"]
    done = in_process(words)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(f"error: {says}\n")


def test_it_is_held_against_the_best_joint_run_of_these_devices(tmp_path: Path) -> None:
    for split in ("120 80", "60 40"):
        batches = ("--batches", *split.split())
        here("run", "--simulate", QUICK_PAIR, *batches, *SHORT, code=0)
    path = tmp_path / "result.json"
    told = one_line(here(*PAIR, *SHORT, "-o", str(path), code=0).stdout)
    result = json.loads(path.read_text())
    assert result["joint"]["batches"] == [120, 80]
    # Both compute for 32 ms, and the joint run shares gradients for 6 ms more.
    assert result["joint"]["throughput"]["median"] == pytest.approx(200 / 0.038)
    assert result["throughput"]["median"] == pytest.approx(200 / 0.032)
    joint = "one model on all devices, split 120/80: 5263 samples/s"
    assert f"{joint} (of unknown precision: that run was short)" in told
    assert "short), 15.8 % less: sync and waiting" in told
    assert result_of(*PAIR, *SHORT, "--precision", "float32")["joint"] is None


def test_an_interrupt_keeps_what_is_measured_and_resume_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    command = (*PAIR, "--windows", "2", "--duration", "0.3", "-o", str(path))
    slow = engine(tmp_path, SLOWLY.replace("sleep(seconds)", "sleep(seconds / 5)"))
    program = start(*command, environment=slow)
    lines_until(program, "window 1 of 2, at once")
    assert "--resume continues it" in interrupted(program)[1]
    left = json.loads(path.read_text())
    assert left["complete"] is False
    assert left["throughput"]["median"] > 0
    again = gpubalance(*command, "--resume", code=0, environment=slow)
    result = json.loads(path.read_text())
    assert result["complete"] is True
    assert "resumed" in [warning["code"] for warning in result["warnings"]]
    assert "measuring GPU:0 alone, window 1 of 2" not in again.stderr
    assert result["overlap_s"] > left["overlap_s"]
    for before, after in zip(left["replicas"], result["replicas"], strict=True):
        kept = before["step_time_s"]["samples"]
        assert after["step_time_s"]["samples"][: len(kept)] == kept
