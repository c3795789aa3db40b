"""Rows 27, 28, 33 and 35 to 38.

They are about what is asked for, who else asks, where it is shown, and by which clock.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import struct
import subprocess
import termios
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpubalance.errors import BadInput
from gpubalance.jobs.saved import kept_probes
from gpubalance.settings.cluster import cluster_of
from gpubalance.system.state import state_folder
from tests.cli.program import (
    PROGRAM,
    QUICK_PAIR,
    SHORT,
    TINY_PAIR,
    gpubalance,
    lines_until,
    typed,
)
from tests.cli.terminal import command_in_terminal
from tests.faults.machine import BRIEF, HOLDS_32, Machine, codes_of, first_line, in_step
from tests.stand_in import TWO_UNLIKE_GPUS, compiled
from tests.support.known import known
from tests.support.python import python

WAITS = in_step("note(), time.sleep(600)", when="max(batches) > 8")


def test_33_a_second_gpubalance_on_a_gpu_is_told_its_pid(tmp_path: Path) -> None:
    machine = Machine(tmp_path, WAITS)
    with machine.starts("run", "--gpus", "1") as first:
        machine.wait_for_note()
        says = f"is in use by another gpubalance, process {first.pid}"
        for second in ("run", "balance"):
            told = first_line(machine.refuses(3, second))
            assert told == f"error: GPU:1 (NVIDIA GeForce GTX 1080) {says}"
        assert first.poll() is None
        locks = sorted(state_folder("locks").iterdir())
        # No lock is held by a dead process, or for a device that its holder did not name.
        other = Machine(tmp_path)
        other.runs("run", "--gpus", "0", *BRIEF)
        assert sorted(state_folder("locks").iterdir()) == locks
    other.runs("run", *BRIEF)


@pytest.mark.full
def test_33_two_probes_of_the_same_share_no_journal(tmp_path: Path) -> None:
    machine = Machine(tmp_path, WAITS)
    words = typed("--max-batch 16 --duration 0.2 --no-ahead")
    command = ("probe", "--simulate", QUICK_PAIR, *words)
    with machine.starts(*command) as first:
        machine.wait_for_note()
        for options in ((), ("--resume",)):
            second = machine.runs_apart(*command, *options, code=3)
            told = f"is in use by another gpubalance, process {first.pid}"
            assert told in second.stderr
        # Simulated devices are nobody's, so two runs of them do not mind each other.
        quick = Machine(tmp_path)
        quick.runs("run", "--simulate", QUICK_PAIR, *BRIEF)
    again = quick.runs_apart(*command, "--resume")
    assert "continuing an unfinished measurement" in again.stderr


@pytest.mark.parametrize(("term", "options"), [("xterm", ("--quiet",)), ("dumb", ())])
def test_35_a_narrow_terminal(
    tmp_path: Path, term: str, options: tuple[str, ...]
) -> None:
    """A narrow terminal gets a whole summary and a dumb one plain text only.

    Of a pipe, which gets plain text, see test_34; of NO_COLOR tests/cli/test_live.py.
    """
    variables = Machine(tmp_path, TERM=term).environment
    command = [PROGRAM, "run", *BRIEF, *options]
    code, seen = command_in_terminal(command, 40, environment=variables)
    assert code == 0, seen.written
    assert seen.ever("imbalance 1.000")
    assert b"\x1b" not in seen.written
    assert max(map(len, seen.written.decode().replace("\r", "").splitlines())) <= 40


@pytest.mark.full
def test_30_what_is_proven_after_an_out_of_memory_is_kept_too(tmp_path: Path) -> None:
    full = tmp_path / "full"
    steps = f"""
def holds(device, size):
    full = pathlib.Path({str(full)!r})
    return size <= (16 if full.exists() else 32)
def needs(device, batch):
    return (16 + batch) << 20
def step(devices, batches, number):
    time.sleep(0.004)
    return 0.01
"""
    machine = Machine(tmp_path, steps)
    fast = (*typed("--round-duration 0.2 --duration 0.2 --windows 6 --accumulate off"),)
    with machine.starts("balance", *fast) as program:
        lines_until(program, "^window 1 of 6: ")
        full.touch()
        for line in ("… proving", "^window 2 of 6: "):
            lines_until(program, line)
    again = machine.runs_apart("balance", *fast, "--resume", "--json")
    proof = again.stderr.split("… proving")[-1]
    assert "window 1 of 6: " in proof
    assert not re.search(r"… measuring 16/16, window [12] of", proof)
    assert json.loads(again.stdout)["batches"] == [16, 16]


# No device tries what it does not hold, as each try costs a worker. Other tests are about that.
_FEW = ("--max-global-batch", "32", "--windows", "2", "--accumulate", "off")
SHORT_BALANCE = ("balance", "--round-duration", "0.2", "--duration", "0.2", *_FEW)


def noting(path: Path) -> str:
    """An engine script that writes down which devices trained with which batches."""
    return f"""{HOLDS_32}
def step(devices, batches, number):
    time.sleep(0.004)
    with open({str(path)!r}, "a") as file:
        print(*(device.index for device in devices), batches, file=file)
    return 0.01
"""


def test_30_a_fresh_balance_goes_on_with_its_interrupted_probe(tmp_path: Path) -> None:
    """A fresh balance that was interrupted in its probe goes on with that.

    And neither with an older probe nor with an older balance's rounds.
    """
    trained = tmp_path / "trained"
    machine = Machine(tmp_path, noting(trained))
    with machine.starts(*SHORT_BALANCE) as older:
        lines_until(older, "^window 1 of 2: ")
    (before,) = kept_probes()
    trained.unlink()
    with machine.starts(*SHORT_BALANCE, "--fresh") as fresh:
        lines_until(fresh, "^GPU:0 batch 16: ")
        fresh.send_signal(signal.SIGINT)
        *_, told, line = lines_until(fresh, "^  gpubalance ")
        assert fresh.wait(timeout=60) == 130
    assert told == "interrupted: --resume continues it:"
    assert (
        line == f"  gpubalance balance --resume {' '.join(SHORT_BALANCE[1:])} --fresh"
    )
    trained.unlink()
    again = machine.runs_apart(*shlex.split(line)[1:], "--json")
    assert "continuing an unfinished measurement" in again.stderr
    assert json.loads(again.stdout)["probed"] != before.created
    alone = re.findall(r"(?m)^0 \(.*", trained.read_text())
    assert "0 (32,)" in alone
    assert "0 (16,)" not in alone


def unread(machine: Machine, *options: str) -> str:
    """What a run tells whose reader of stdout has gone, which is no error."""
    with machine.starts("run", *BRIEF, *options) as process:
        known(process.stdout).close()
        assert process.wait(timeout=60) == 0
        return known(process.stderr).read()


def test_35_a_result_that_nobody_reads_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    machine = Machine(tmp_path)
    assert unread(machine, "--quiet", "-o", str(path), "--json") == ""
    assert json.loads(path.read_text())["complete"] is True
    told = unread(machine)
    assert told.endswith("result was printed: rerun with --resume to print it\n")
    again = machine.runs_apart("run", *BRIEF, "--resume", "--json")
    assert json.loads(again.stdout)["complete"] is True
    assert "continuing an unfinished measurement" in again.stderr
    assert "measuring" not in again.stderr


TASK = {"type": "worker", "index": 0}
CLUSTER = {"cluster": {"worker": ["a:1", "b:2"]}, "task": TASK}


def with_workers(*addresses: str) -> str:
    return json.dumps({**CLUSTER, "cluster": {"worker": addresses}})


def of_rank(rank: object) -> str:
    return json.dumps({**CLUSTER, "task": {"type": "worker", "index": rank}})


PORTS = "addresses are HOST:PORT, with a port of 1 to 65535, not "
MALFORMED = {
    "nonsense": "Invalid JSON",
    "[]": "TF_CONFIG is malformed",
    '{"cluster": {}}': "cluster: ",
    json.dumps({**CLUSTER, "cluster": {"worker": "a:1"}}): "cluster.worker",
    of_rank(2): "the cluster has no worker 2",
    of_rank(-1): "task.index",
    json.dumps({"cluster": CLUSTER["cluster"]}): "task: Field required",
    "{" * 100_000: "Invalid JSON",
    # No two processes can listen at these addresses.
    with_workers("a:1", "a:1"): "cluster: two processes share an address",
    with_workers("a:0", "b:2"): f"{PORTS}a:0, b:2",
    with_workers("a:1", "b:65536"): PORTS,
    with_workers("a", "b:2"): PORTS,
}


@pytest.mark.parametrize(
    ("text", "says"), MALFORMED.items(), ids=lambda text: text[:20]
)
def test_36_a_malformed_tf_config_is_a_bad_input(text: str, says: str) -> None:
    with pytest.raises(BadInput, match="TF_CONFIG is malformed") as caught:
        cluster_of({"TF_CONFIG": text})
    assert says in caught.value.message
    assert "unset TF_CONFIG" in caught.value.remedy


def test_36_one_that_is_well_formed_is_ignored_and_that_is_said(tmp_path: Path) -> None:
    """The workers do not even see it.

    Hosts to measure are named by --hosts, so no peer can be absent.
    """
    # A shell writes it like this, and TensorFlow reads it.
    in_quotes = cluster_of({"TF_CONFIG": of_rank("1")})
    assert known(in_quotes).rank == 1
    steps = """
def built(devices):
    assert "TF_CONFIG" not in os.environ
"""
    machine = Machine(tmp_path, steps, TF_CONFIG=json.dumps(CLUSTER))
    assert "tf-config-ignored" in codes_of(machine.result("run", *BRIEF))
    Machine(tmp_path, TF_CONFIG="{").refuses(4, "probe")


@pytest.mark.parametrize("gpus", [("0",), ("0", "1")], ids=["one", "identical"])
def test_37_identical_ones_get_an_even_split(
    tmp_path: Path, gpus: tuple[str, ...]
) -> None:
    alike = TWO_UNLIKE_GPUS.replace("GTX 1080 Ti", "GTX 1080")
    short = (*BRIEF, *typed("--round-duration 0.2 --max-global-batch 64"))
    plan = Machine(tmp_path, gpus=alike).result("balance", "--gpus", *gpus, *short)
    assert len(set(plan["batches"])) == 1
    assert plan["global_batch"] == sum(plan["batches"]) > 0


@pytest.mark.full  # compiles clock.c
def test_38_a_wall_clock_that_goes_backwards_changes_no_figure(tmp_path: Path) -> None:
    """The real engine takes 20 ms for a step of 60 and 40 samples, whatever the time of day.

    It works on simulated devices.
    """
    clock = compiled(Path(__file__).with_name("clock.c"), tmp_path / "clock.so")
    backward = {"LD_PRELOAD": str(clock)}
    code = "import time; a = time.time(); print(time.time() - a)"
    assert float(python("-c", code, only=backward).stdout) < -50
    words = typed("--batches 60 40 --time-limit 120 --json")
    command = ("run", *TINY_PAIR, *SHORT, *words)
    result = json.loads(gpubalance(*command, code=0, environment=backward).stdout)
    for replica in result["replicas"]:
        assert 0.019 < replica["compute_s"] < 0.2
    assert all(0.019 < seconds < 0.3 for seconds in result["step_time_s"]["samples"])
    ends = result["step_time_s"]["at_s"]
    assert ends == sorted(ends)


def test_35_a_terminal_that_goes_away_costs_no_result(tmp_path: Path) -> None:
    """As after `disown`, whose program the terminal's end leaves alone."""
    path = tmp_path / "run.json"
    machine = Machine(tmp_path, in_step("note()", when="number == 20"))
    master, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [PROGRAM, "run", *typed("--windows 20 --duration 0.2 -o"), str(path)]
    files: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    files |= {"stderr": terminal, "env": machine.variables | {"TERM": "xterm"}}
    ignore = partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    process = subprocess.Popen(command, preexec_fn=ignore, **files)
    os.close(terminal)
    while not machine.noted():
        os.read(master, 1 << 16)  # it waits for a terminal that takes nothing in
    os.close(master)
    assert process.wait(120) == 0
    assert json.loads(path.read_text())["complete"] is True
