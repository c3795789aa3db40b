"""`launch` runs a script in a process for each device of a plan.

What a script does with the plan is tested in training/.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from gpubalance.devices.hosts import connect_hosts
from gpubalance.errors import PartialResult, PlanMismatch, UsageError
from gpubalance.jobs.launch import launch
from gpubalance.results.plan import Plan
from gpubalance.results.records import read_record
from gpubalance.settings.cluster import Cluster
from gpubalance.training.split import load_plan
from gpubalance.workers.lines import lines_of
from tests.cli.program import ROOT, children_of, here, lines_until, start
from tests.support.cases import cases
from tests.support.in_process import Program
from tests.support.told import refused
from tests.training.test_hosts import TWO_HOSTS, write_plan
from tests.workers.test_process import gone

PAIR = str(ROOT / "tests" / "render" / "data" / "pair-balance.json")
LABELS = ("alpha:0", "alpha:1", "beta:0")
VIA = ("--via", "env ON={host}")
SCRIPT = """
import json, os, signal, sys, time
task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
print(os.environ.get("ON", "here"), "given", sys.argv[1:], "as", task.get("index"))
print("to stderr", file=sys.stderr)
if "fail" in sys.argv:
    sys.exit(5) if task["index"] == 1 else time.sleep(600)
if "wait" in sys.argv:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(print("got", number)))
    print("waits", file=sys.stderr)
    time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_dry_runs_start_nothing(
    script: str, tmp_path: Path, in_process: Program
) -> None:
    done = in_process(["launch", "--dry-run", PAIR, script, "--lr", "3"])
    assert done.code == 0
    assert f"python {script} --lr 3\n  process 1: GPU:0 " in done.out
    assert done.out.endswith("nothing was started\n")
    assert max(map(len, done.out.splitlines()[1:])) <= 80
    assert "given" not in done.out
    hosts = str(write_plan(tmp_path))
    done = in_process(["launch", "--dry-run", *VIA, hosts, script])
    numbered = [(str(number), label) for number, label in enumerate(LABELS, 1)]
    assert re.findall(r"process (\d): (\S+) ", done.out) == numbered


@pytest.mark.usefixtures("stand_in")
@cases("via, on", ((), ()), (VIA, ("alpha", "beta")), ids=["here", "on other hosts"])
def test_each_device_has_a_process_that_knows_its_place(
    via: tuple[str, ...], on: tuple[str, ...], script: str, tmp_path: Path
) -> None:
    words = (*via, str(write_plan(tmp_path)), script, "--gpus", "0 1", "-o", "x")
    done = here("launch", *words, code=0)
    told = []
    for rank, label in enumerate(LABELS):
        host = label.partition(":")[0] if on else "here"
        told.append(f"{label} | {host} given ['--gpus', '0 1', '-o', 'x'] as {rank}")
    assert sorted(done.stdout.splitlines()) == told
    assert done.stderr.count("| to stderr") == 3


def test_the_devices_of_one_host_are_one_process(script: str) -> None:
    done = here("launch", PAIR, script)
    assert done.stdout == "GPU:0, GPU:1 | here given [] as None\n"


@pytest.mark.usefixtures("stand_in")
def test_a_failure_ends_all_with_its_exit_code(script: str, tmp_path: Path) -> None:
    done = here("launch", *VIA, str(write_plan(tmp_path)), script, "fail", code=5)
    assert re.search(
        r"launch \| the process of \S+ ended with exit code 5", done.stderr
    )


LEFT_EARLY = """
import json, os, sys, time
from pathlib import Path
import psutil
if json.loads(os.environ["TF_CONFIG"])["task"]["index"]:
    Path(f"agent-{os.getppid()}").touch()
    sys.exit()
agents = []
while len(agents) < 2:
    agents = [path.name.partition("-")[2] for path in Path().glob("agent-*")]
for agent in agents:
    while psutil.pid_exists(int(agent)) and psutil.Process(int(agent)).status() != "zombie":
        time.sleep(0.05)
sys.exit(4)
"""


def test_a_failure_is_told_with_who_had_ended_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have left a training early, which TensorFlow in the others takes for a crash."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(LEFT_EARLY)
    said: list[str] = []
    plan = read_record(write_plan(tmp_path), Plan)
    assert launch(plan, [str(script)], lambda line, *_: said.append(line)) == 4
    ended = "the process of alpha:0 ended with exit code 4"
    assert said == [f"{ended}, after alpha:1, beta:0 had ended"]


@cases("number", signal.SIGTERM, signal.SIGKILL)
def test_no_process_outlives_it(number: int, script: str, tmp_path: Path) -> None:
    process = start("launch", *VIA, str(write_plan(tmp_path)), script, "wait")
    for _ in range(3):
        lines_until(process, "waits")
    children = [child.pid for child in children_of(process.pid)]
    assert len(children) == 2 + 2 * 3  # a connection a host, and what holds each
    os.kill(process.pid, number)
    out, _ = process.communicate(timeout=60)
    assert out.count(f"got {number}") == (3 if number == signal.SIGTERM else 0)
    assert process.returncode == (143 if number == signal.SIGTERM else -number)
    assert all(map(gone, children))


def test_a_host_that_is_lost_ends_all(tmp_path: Path) -> None:
    """Its connection ends; of one that is silent see tests/workers/test_hosts.py."""
    script = tmp_path / "train.py"
    said = []
    script.write_text(
        "import os, signal, time\nprint(os.getpid(), flush=True)\nif os.environ['ON'] == 'beta':\n"
        "    os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)"
    )
    connect_hosts("alpha,beta", VIA[1])
    try:
        with refused(r"^beta is lost: the connection ended", PartialResult):
            launch(
                read_record(write_plan(tmp_path), Plan),
                [str(script)],
                lambda line, *_: said.append(int(line)),
            )
    finally:
        connect_hosts(None, None)
    assert said
    assert all(map(gone, said))


def test_what_is_read_slowly_is_told_whole_after_the_end(tmp_path: Path) -> None:
    """What is read slowly is told whole when the script has ended a long line in pieces.

    As behind a pager: all that it printed is still in pipes when it ends.
    """
    script = tmp_path / "train.py"
    said = []
    script.write_text(
        "print('x' * 3_000_000)\nfor _ in range(18_000):\n    print(1_000_000)\n"
    )

    def report(line: str, *_: str) -> None:
        said.append(len(line))
        if len(said) == 1:
            # And never for 0 s, which gives a busy machine's other programs a turn
            time.sleep(1.2)

    assert launch(read_record(Path(PAIR), Plan), [str(script)], report) == 0
    long = said[:-18_000]
    short = said[-18_000:]
    assert (sum(long), set(short)) == (3_000_000, {7})
    assert max(long) < 2_000_000


@pytest.mark.full
def test_a_script_that_prints_without_end_holds_up_no_other(tmp_path: Path) -> None:
    """What the one prints is not read on before the other has said something.

    Both use the same connection.
    """
    script = tmp_path / "train.py"
    told = threading.Event()
    script.write_text(
        "import json, os, sys, time\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 0:\n"
        "    while True:\n        print('x' * 1000)\n"
        "time.sleep(0.5)\nsys.exit(print('is heard') or 3)\n"
    )

    def report(line: str, *_: str) -> None:
        if line == "is heard":
            told.set()
        else:
            assert told.wait(30)

    assert launch(read_record(write_plan(tmp_path), Plan), [str(script)], report) == 3


LOSES = """
import json, os, signal, sys, time
from pathlib import Path
from gpubalance.settings.requests import launched_split
from gpubalance.training.launched import reports

plan, how, down = sys.argv[1:]
split = launched_split(json.loads(Path(plan).read_text())["created"])
print("has", split and split.batches)
if how == "mistake":
    sys.exit(3)
reports.note(epoch=1)
reports.note_step(trains=True)
if os.environ["ON"] == "alpha":
    reports._next_s = 0.0
    reports.note_step(trains=True)
if how == "end":
    reports.note(awaited=False)
    time.sleep(1.5)
elif os.environ["ON"] == "beta" and (how == "always" or how == "once" and split is None):
    Path(down).touch()
    os.kill(os.getpid(), signal.SIGKILL)
elif how != "once" or split is None:
    time.sleep(600)
"""
KILLED = "the process of beta:0 was ended by SIGKILL, probably because the host ran out of memory"
LOST = "steps lost since the beginning: 2; training was in step 2 of epoch 1"
ANEW = "fit has no BackupAndRestore callback: a restart begins anew"


AGAIN = "alpha:0 80, alpha:1 40, beta:0 24, with the global batch of 144 as before"
RESTARTS = [f"restart 1 of 1: {AGAIN}", "training continues with epoch 1"]
WAS_LOST = [ANEW, KILLED, LOST, *RESTARTS]
MISTAKEN = ["ended with exit code 3", "training had not begun"]


@cases(
    "how, options, code, says",
    ("once", "--restarts 1", 0, WAS_LOST),
    ("mistake", "--restarts 3", 3, MISTAKEN),
    pytest.param(
        *("always", "--restarts 1", 137, [*WAS_LOST, KILLED, LOST]),
        marks=pytest.mark.full,
    ),
    ("end", "--deadline 1", 0, []),
    ("hang", "--deadline 1", 8, []),
)
def test_a_script_is_started_again_as_often_as_may_be(
    how: str, options: str, code: int, says: list[str], tmp_path: Path
) -> None:
    script, plan = tmp_path / "loses.py", str(write_plan(tmp_path))
    script.write_text(LOSES)
    words = (plan, str(script), plan, how, str(tmp_path / "down"))
    done = here(f"launch {options}", *VIA, *words, code=code)
    told = re.findall(r"^launch \| (.*)$", done.stderr, re.MULTILINE)
    assert len(told) == len(says), done.stderr
    assert all(text in line for text, line in zip(says, told, strict=True)), done.stderr
    is_restarted = "restart 1 of 1" in done.stderr
    assert ("beta:0 | has (80, 40, 24)" in done.stdout) == is_restarted
    if how == "hang":
        late = "error: no step finished for 1 s: the others wait for beta:0, in step 1"
        assert f"{late} of epoch 1\n" in done.stderr


def test_too_few_devices_end_it_with_what_was_lost(tmp_path: Path) -> None:
    script, down = tmp_path / "loses.py", tmp_path / "down"
    plan = str(write_plan(tmp_path))
    script.write_text(LOSES)
    via = f"""sh -c 'test ! -e {down} -o $0 = alpha && ON=$0 exec "$@"' {{host}}"""
    how = ("--restarts", "3", "--at-least", "3", "--via", via)
    done = here("launch", *how, plan, str(script), plan, "once", str(down), code=6)
    assert "launch | beta can't be reached: " in done.stderr
    few = "error: only 2 of 3 devices are left, fewer than --at-least 3\n  cause: "
    assert f"{few}{KILLED}; {LOST}\n" in done.stderr
    more = ("--at-least", "4", "--restarts", "1")
    for words, says in (
        (("--at-least", "2"), "--at-least needs --restarts"),
        (more, "--at-least 4 is more than the plan's 3 devices"),
    ):
        assert says in here("launch", *VIA, *words, plan, str(script), code=2).stderr


def test_what_starts_a_script_hears_when_its_controller_is_silent() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"\0first\n\0sec\0ond\n\0")
    with os.fdopen(reading, "rb", 0) as pipe:
        assert list(lines_of(pipe, alone_s=0.2)) == [b"first", b"second"]
    os.close(writing)


SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
export ON="$1"; shift; exec sh -c "$*"
"""


def test_a_plan_knows_how_hosts_are_reached_not_by_what(
    script: str, tmp_path: Path
) -> None:
    """The hosts are reached by ssh, whose stand-in does what one notices here.

    A shell on the other side reads the words.
    """
    connect_hosts("alpha,beta", VIA[1])
    plan = write_plan(tmp_path)
    connect_hosts(None, None)
    found = json.loads(plan.read_text())
    assert found["reached_by"] == "command"
    assert VIA[1] not in plan.read_text()
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = here(f"launch {plan} {script}", code=0, environment=path)
    assert {line.split()[2] for line in done.stdout.splitlines()} == {"alpha", "beta"}


def test_hosts_that_a_plan_is_not_for_or_that_can_not_be_reached(
    script: str, tmp_path: Path, in_process: Program
) -> None:
    plan = str(write_plan(tmp_path))
    lost = "alpha can't be reached: "
    greets = 'echo \'{"Hello":{"of":"{host}"}}\''
    names = "the plan needs devices on beta, and --hosts names only alpha, gamma"
    for words, code, says in (
        (["--hosts", "alpha", PAIR], 7, "the plan is for one host"),
        (["--hosts", "alpha,gamma", plan], 7, names),
        (["--via", "false {host}", plan], 3, f"{lost}false alpha ended with exit code"),
        (["--via", "no-such {host}", plan], 3, f"{lost}no-such alpha can't be run: No"),
        (["--via", greets, plan], 3, "gpubalance's version on alpha differs"),
    ):
        found, _, err = in_process(["launch", *words, script])
        assert found == code, err
        assert says in err


def test_its_options_stand_before_the_plan_which_names_devices(script: str) -> None:
    simulated = here("launch", "--simulate", "2", PAIR, script, code=2)
    assert simulated.stderr.startswith("error: no such option: --simulate")
    seen = "--simulate comes after the plan, where the script belongs"
    assert seen in here("launch", PAIR, "--simulate", "2", script, code=2).stderr
    swapped = here("launch", script, PAIR, "--lr", "3", code=2).stderr
    assert f"→ gpubalance launch {PAIR} {script} --lr 3\n" in swapped


def test_a_plan_for_hosts_wants_a_process_for_each_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_plan(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with refused("gpubalance launch PLAN SCRIPT", UsageError):
        load_plan(path, simulate=TWO_HOSTS)
    workers = {"worker": ["a:1", "b:2"]}
    cluster = {"cluster": workers, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    few = "2 workers, but the split has 3 devices: alpha:0, alpha:1, beta:0"
    with refused(few, PlanMismatch):
        load_plan(path, simulate=TWO_HOSTS)
    cluster["cluster"] = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    split = load_plan(path, simulate=TWO_HOSTS)
    assert split._cluster == Cluster(addresses=("a:1", "b:2", "c:3"), rank=1)
    assert not split.is_first
