"""`gpubalance run` as a user runs it.

An engine without TensorFlow holds the simulated devices to their profiles.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.plan.plan import plan
from gpubalance.jobs.saved import save
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.settings import Settings
from tests.cli.program import (
    PROGRAM,
    QUICK_PAIR,
    ROOT,
    SHORT,
    TINY,
    TINY_PAIR,
    children_of,
    gpubalance,
    here,
    interrupted,
    lines_until,
    lives,
    run_json,
    start,
    typed,
)
from tests.faults.machine import codes_of
from tests.jobs.probes import probe_of, with_second
from tests.stand_in import engine
from tests.support.altered import altered
from tests.support.cases import cases

pytestmark = pytest.mark.usefixtures("stand_in")
# In the time that these take, not at once.
SLOWLY = """
import time
def step(devices, batches, number):
    time.sleep(0.02)
    return 0.02
"""


def test_devices_are_those_named_in_their_order_with_samples() -> None:
    """Devices are those that are named in their order and those with samples."""
    four = str(ROOT / "configs" / "four-unlike.toml")
    result = run_json("--simulate", four, "--model", TINY, "--gpus", "3,1")
    assert [device["name"] for device in result["devices"]] == ["Unlike D", "Unlike B"]
    shares = [(replica["device"], replica["batch"]) for replica in result["replicas"]]
    assert shares == [(0, 64), (1, 64)]
    done = here("run", *TINY_PAIR, "--batches", "0", "40", *SHORT, code=0)
    assert "GPU:0: no samples, left out" in done.stdout


@cases(
    "options, even",
    ("--gpus 1 --batches 300 --micro-batches 110", None),
    ("--batches 30 20 --baseline none", None),
    ("--batches 20 20", [20, 20]),
    ("--batches 60 60 --micro-batches 60 30", [60, 60]),
    # GPU:1 holds 1.25 GiB: 0.25 + 0.125 GiB and 112 samples of 8 MiB.
    ("--batches 200 100", [112, 112]),
    ("--batches 200 150 --micro-batches 200 40", [112, 112]),
)
def test_what_a_split_is_compared_with(options: str, even: list[int] | None) -> None:
    """The even split of its global batch, or the largest that fits in one piece."""
    result = run_json(*TINY_PAIR, *options.split())
    found = result["baselines"]["even"]
    assert even == (found["batches"] if found else None)
    assert found is None or found["micro_batches"] == found["batches"]
    assert (result["speedup_over_even"] is None) == (even is None)
    is_even = even == result["batches"] == result["micro_batches"]
    assert (result["speedup_over_even"] == 1.0) == is_even
    assert not [warning for warning in result["warnings"] if "even" in warning["code"]]


def test_where_no_equal_shares_fit_nothing_is_compared(tmp_path: Path) -> None:
    script = "def holds(device, size): return size == (204, 96)[device.index]\n"
    split = ("--batches", "204", "96", *SHORT, "--json")
    done = here("run", *TINY_PAIR, *split, code=0, environment=engine(tmp_path, script))
    result = json.loads(done.stdout)
    assert result["baselines"]["even"] is None
    assert "even-split-out-of-memory" in codes_of(result)


def test_a_split_that_runs_out_of_memory_jointly_is_told_what_fits() -> None:
    profile = str(ROOT / "configs" / "gtx1080ti-gtx1080.toml")
    split = f"run --simulate {profile} --gpus 0 1 --batches 1024 710"
    done = here(split, *SHORT, code=5)
    assert "GPU:0 (GeForce GTX 1080 Ti) at batch 1024" in done.stderr
    assert "GPU:1 (GeForce GTX 1080) at batch 710" in done.stderr
    # 10.5 and 7.6 GiB, less 1.26 and the joint run's 0.6 GiB, at 9.1 MiB a sample.
    assert "--batches 972 645" in done.stderr
    assert re.search(r"run: about \d+ s\n", done.stderr)
    assert done.stdout == ""
    sizes = typed("--batches 200 240 --micro-batches 200 120")
    done = here("run", *TINY_PAIR, *sizes, *SHORT, code=5)
    says = "GPU:1 (Quick 2) at micro-batch 120 in the run of 200/240 in micro-batches 200/120"
    assert says in done.stderr
    assert "--batches 200 224 --micro-batches 200 112" in done.stderr


def test_what_failed_in_the_kept_probe_is_told_before_a_worker_starts() -> None:
    save(with_second(probe_of(simulated_devices(QUICK_PAIR)[0]), 112, 113))
    split = ("run", "--simulate", QUICK_PAIR, "--batches", "200", "120")
    done = here(*split)
    assert (done.returncode, done.stdout) == (5, "")
    holds = "error: GPU:1 has too little memory for 120 samples at once: in the probe of 2026-11-21"
    assert done.stderr.startswith(holds)
    says = " 113 failed and 112 fit\n  → use a smaller batch there; if more memory is free now, probe "
    assert says in done.stderr
    assert here(*split, "--micro-batches", "200", "60", *SHORT).returncode == 0


def trained_by(folder: Path, *arguments: str) -> list[str]:
    """The split of each timing of a run of that command, as text."""
    notes = folder / "trained.txt"
    script = f"""
    def step(devices, batches, number):
        with open({str(notes)!r}, "a") as file:
            print(*batches, file=file)
    """
    here("run", *TINY_PAIR, *arguments, code=0, environment=engine(folder, script))
    return notes.read_text().splitlines()


def test_equal_shares_are_found_by_the_memory_line(tmp_path: Path) -> None:
    """Equal shares are found by the memory line and nothing is warmed up twice."""
    trained = trained_by(tmp_path, "--batches", "200", "100")
    # 113 samples are refused before a step; an even split that memory does not hold is not tried.
    assert list(dict.fromkeys(trained)) == ["200 100", "112 112"]


def test_with_xla_each_split_is_warmed_up_whole_and_once(tmp_path: Path) -> None:
    words = typed("--batches 30 20 --xla --windows 1 --duration 0.3")
    trained = trained_by(tmp_path, *words)
    # timings, the stamped ones included, at most
    windows = 3 + round(0.9 * 0.3 / 0.014)
    for split in ("30 20", "25 25"):
        assert 10 <= trained.count(split) <= 14 + windows
        first = trained.index(split)
        assert trained[first : first + 10] == [split] * 10


def test_an_interrupt_ends_the_worker_and_prints_what_it_has(tmp_path: Path) -> None:
    long = "run --batches 30 20 --windows 50 --duration 0.3 --json"
    program = start(long, *TINY_PAIR, environment=engine(tmp_path, SLOWLY))
    lines_until(program, "total")
    children = children_of(program.pid)
    assert children
    for _ in range(3):  # the impatient press it again: that must not cut the end short
        program.send_signal(signal.SIGTERM)
        time.sleep(0.03)
    out, err = program.communicate(timeout=60)
    assert program.returncode == 143
    assert "Traceback" not in err
    result = json.loads(out)
    assert result["complete"] is False
    assert result["throughput"]["median"] > 0
    assert not any(map(lives, children))


def test_an_interrupt_before_anything_is_measured_prints_nothing() -> None:
    program = start("run", "--simulate", QUICK_PAIR, "--json")
    end = time.monotonic() + 30
    while not children_of(program.pid) and time.monotonic() < end:
        time.sleep(0.02)
    out, err = interrupted(program)
    assert out == ""
    assert "nothing was measured yet" in err
    assert "--resume" not in err


@cases(
    "streams, code",
    (">&- 2>&- <&-", 0),
    ("2>&1 >/dev/null | true", 0),
    ("-q >/dev/full 2>error.txt", 3),
)
def test_unread_streams_lose_no_file(tmp_path: Path, streams: str, code: int) -> None:
    run = f'"{PROGRAM}" run {" ".join((*TINY_PAIR, *SHORT))} --gpus 0 -o run.json'
    command = ["sh", "-c", f"{run} {streams}"]
    assert subprocess.run(command, timeout=120, cwd=tmp_path).returncode == code
    assert json.loads((tmp_path / "run.json").read_text())["complete"] is True
    if code:
        told = (tmp_path / "error.txt").read_text()
        assert told.startswith("error: can't write to stdout: No space left")


def test_a_terminal_that_knows_only_ascii() -> None:
    variables = {"PYTHONIOENCODING": "ascii"}
    done = gpubalance("devices --simulate", QUICK_PAIR, code=0, environment=variables)
    assert "Quick 3" in done.stdout


def test_a_plan_for_another_model_names_this_one_s_command(tmp_path: Path) -> None:
    """A plan for another model of one's own names the command for this one."""
    devices = simulated_devices(QUICK_PAIR)[0]
    probe = altered(probe_of(devices), settings=Settings(model=TINY))
    made = plan(probe, devices, PlanRequest(sync_s=0.0))
    path = tmp_path / "plan.json"
    path.write_text(made.model_dump_json())
    done = here("run", *TINY_PAIR, "--plan", str(path), "--quiet", code=7)
    line = f"make a plan for this model: gpubalance balance --model {TINY}; --force"
    assert line in done.stderr


@cases("number, advised", (3, False), (4, True))
def test_a_balance_to_be_refused_is_not_advised(number: int, advised: bool) -> None:
    """Two of them can be summed hierarchically; all three can't."""
    batches = ["8", "8", *["0"] * (number - 2)]
    words = ("--simulate", str(number), "--all-reduce", "hierarchical")
    done = here("run", *words, "--batches", *batches, *SHORT, code=0)
    assert ("next: gpubalance balance" in done.stdout) == advised
