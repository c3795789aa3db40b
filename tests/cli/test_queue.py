"""`gpubalance queue`: commands for the shell, one at a time on each device."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpubalance.devices.machine import find_machine
from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.saved import save
from gpubalance.render.queue import running_lines
from gpubalance.results.queue import Queue, QueuedCommand, RunningCommand
from gpubalance.results.records import read_record
from tests.cli.program import (
    PROGRAM,
    QUICK_PAIR,
    children_of,
    gpubalance,
    here,
    lines_until,
    one_line,
    result_of,
    start,
)
from tests.cli.terminal import command_in_terminal
from tests.jobs.probes import probe_of
from tests.stand_in import TWO_UNLIKE_GPUS, engine, environment
from tests.support.cases import cases
from tests.workers.test_process import gone

PAIR = ("--simulate", QUICK_PAIR)
BY_DEVICE = "if [ $GPUBALANCE_DEVICE = GPU:0 ]; then sleep {}; else sleep {}; fi"
LACKS_ON_THE_SMALL = "if [ {device} = GPU:1 ]; then echo OOM when allocating tensor; seq 3000; exit 3; fi"
TELLS = "echo $GPUBALANCE_DEVICE $CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES {device} {number} $0 $HOME/{}"


def written(folder: Path, *commands: str) -> str:
    path = folder / "trials.txt"
    path.write_text("\n".join(commands) + "\n")
    return str(path)


def queued(
    folder: Path, *commands: str, code: int = 0, options: tuple[str, ...] = PAIR
) -> Queue:
    asked = ("queue", written(folder, *commands), *options, "--json", "-q")
    # Whose agents are forks
    done = here(*asked, code=code, cwd=folder, environment=engine(folder))
    return Queue.model_validate_json(done.stdout)


@cases("options, last", ((), "GPU:0"), (("--pull",), "GPU:1"))
def test_the_slow_card_leaves_the_last_command_to_the_fast_one(
    options: tuple[str, ...], last: str, tmp_path: Path
) -> None:
    """The slow card leaves the last command to the fast one unless commands are pulled."""
    more = (*PAIR, *options)
    found = queued(tmp_path, *[BY_DEVICE.format(1.6, 4)] * 5, options=more)
    where = []
    for command in found.commands:
        where.append([found.devices[tried.device].label for tried in command.tries])
    assert where == [["GPU:0"], ["GPU:1"], ["GPU:0"], ["GPU:0"], [last]]


def test_each_line_is_run_by_the_shell_and_sees_one_device(tmp_path: Path) -> None:
    """In a file of another editor too."""
    pipes = "echo 'a  b' | tr a c && echo $((1+1)) >&2; echo end"
    lines = [TELLS, pipes, "echo it\\'s # isn't it", 'x=$(echo "it\'s")']
    lines += ["echo a\\\\\r", "  echo b\u2028c\r"]
    lines.append("number=7; [ ${number} = 7 ]")
    result = queued(tmp_path, "\ufeff# a comment", "", *lines)
    logs = [Path(command.log or "").read_text() for command in result.commands[:3]]
    assert logs == [
        f"GPU:0 PCI_BUS_ID -1 GPU:0 1 sh {os.environ['HOME']}/{{}}\n",
        "c  b\n2\nend\n",
        "it's\n",
    ]
    stripped = [line.strip() for line in lines]
    assert [command.command for command in result.commands] == stripped
    assert [command.tries[0].exit for command in result.commands] == [0] * len(lines)


def test_gpus_are_seen_by_uuid_and_not_shared_by_queues(tmp_path: Path) -> None:
    gpus = environment(tmp_path, TWO_UNLIKE_GPUS)
    trials = written(tmp_path, "echo $CUDA_VISIBLE_DEVICES; sleep 30")
    asked = ("queue", trials, "--gpus", "1")
    first = start(*asked, "--logs", "logs", cwd=tmp_path, environment=gpus)
    lines_until(first, "begins on GPU:1")
    second = gpubalance(*asked, code=3, cwd=tmp_path, environment=gpus)
    told = f"GPU:1 (NVIDIA GeForce GTX 1080) is in use by another gpubalance, process {first.pid}"
    assert told in second.stderr
    log = tmp_path / "logs" / "001.log"
    while not log.read_text():
        time.sleep(0.05)
    assert log.read_text() == "GPU-1080bbbb-0000-4000-8000-000000000002\n"
    first.send_signal(signal.SIGTERM)
    assert first.wait() == 143


def test_what_lacks_memory_is_tried_on_the_largest_device(tmp_path: Path) -> None:
    lacks = "echo OOM when allocating tensor; exit 1"
    trials = written(tmp_path, "sleep 1", LACKS_ON_THE_SMALL, lacks, "sleep 2")
    done = here("queue", trials, *PAIR, "-o", "queue.json", code=6, cwd=tmp_path)
    result = read_record(tmp_path / "queue.json", Queue)
    second, third = result.commands[1:3]
    tries = [(one.device, one.exit, one.out_of_memory) for one in second.tries]
    assert tries == [(1, 3, True), (0, 0, False)]
    assert third.tries[-1].device == 0
    assert all(one.out_of_memory for one in third.tries)
    assert "002 ran out of memory on GPU:1 after" in done.stderr
    assert "trying again on GPU:0, which has more memory" in done.stderr
    assert "1 of 4 commands failed: 3" in done.stderr

    writes = "report queue.json --html page.html --markdown"
    shown = here(writes, code=0, cwd=tmp_path)
    assert "| 2 | if \\[ {device} = GPU:1 \\]" in shown.stdout
    page = (tmp_path / "page.html").read_text()
    assert "What each device ran, and when" in page
    assert "<svg" in page
    refused = here("compare", "queue.json", "queue.json", code=4, cwd=tmp_path)
    assert "is a queue, not a result" in refused.stderr


def test_a_failure_is_told_with_its_end_and_the_others_go_on(tmp_path: Path) -> None:
    lines = ["echo why; echo so >&2; exit 5", "true", "kill -9 $$"]
    lines.append("true # " + "too long for a system call " * 9000)
    trials = written(tmp_path, *lines)
    done = here("queue", trials, *PAIR, "--logs", "logs", code=6, cwd=tmp_path)
    assert "4 commands on 2 devices" in done.stdout
    assert "1 succeeded, 3 failed" in done.stdout
    assert "| gpubalance can't start it: Argument list too long" in done.stdout
    first = r"001 failed on GPU:\d with exit code 5; .*logs/001.log:\n  \| why\n  \| so"
    assert re.search(first, done.stdout)
    assert re.search(r"003 failed on GPU:\d with exit code 137", done.stdout)
    assert "error: 3 of 4 commands failed: 1, 3, 4\n" in done.stderr
    assert re.search(r"001 begins on GPU:0: echo why.*\n", done.stderr)
    assert re.search(r"002 ended on GPU:\d after \S+ s: true\n", done.stderr)


def test_a_speed_that_no_command_has_shown_says_so(tmp_path: Path) -> None:
    save(probe_of(simulated_devices(QUICK_PAIR)[0]))
    done = here("queue", written(tmp_path, "false"), *PAIR, code=6, cwd=tmp_path)
    by_probe = "the speeds of GPU:0, GPU:1 are from a probe: no command has succeeded "
    assert by_probe in done.stdout
    assert "  → fix them; --resume continues it:\n" in done.stderr
    sleeps = written(tmp_path, "sleep 0.2", "sleep 0.2")
    well = here("queue", sleeps, *PAIR, code=0, cwd=tmp_path)
    assert "from a probe" not in well.stdout


def test_resume_runs_only_mended_lines_also_on_fewer_devices(tmp_path: Path) -> None:
    """Mended lines are run by resume also on fewer devices and the others are not."""
    line = "echo {} >> ran"
    trials = written(tmp_path, line.format(1), "echo 2 >> ran; false", line.format(3))
    asked = ("queue", trials, *PAIR, "--logs", "logs")
    assert here(*asked, cwd=tmp_path).returncode == 6
    again = here(*asked, code=2, cwd=tmp_path)
    assert "--logs logs already holds logs of a queue: 001.log" in again.stderr
    (tmp_path / "ran").unlink()
    written(tmp_path, *[line.format(one) for one in (1, "two", 3, 4)])
    done = here(*asked, "--resume", code=0, cwd=tmp_path)
    assert "2 of 4 commands had succeeded before" in done.stderr
    assert sorted((tmp_path / "ran").read_text().split()) == ["4", "two"]
    dry = here(*asked, "--resume", "--dry-run", code=0, cwd=tmp_path).stdout
    assert dry.startswith("0 of 4 commands (4 succeeded before), one at a time on ")
    with Path(trials).open("a") as file:
        file.write("echo 5 >> ran\n")
    left = ("--gpus", "1", "--resume")
    dry = here(*asked, *left, "--dry-run", code=0, cwd=tmp_path).stdout
    assert dry.endswith("\n  5  echo 5 >> ran\nnothing was run\n")
    result = result_of(Queue, *asked, *left, cwd=tmp_path)
    assert [command.resumed for command in result.commands] == [True] * 4 + [False]
    # Of those that are left
    assert [one.device for one in result.commands[-1].tries] == [0]
    assert sorted((tmp_path / "ran").read_text().split()) == ["4", "5", "two"]
    done = here(*asked, "--resume", cwd=tmp_path)
    assert "5 commands on 2 devices in 0.0 s: all succeeded" in done.stdout
    assert sorted((tmp_path / "ran").read_text().split()) == ["4", "5", "two"]


def test_resume_counts_no_success_of_an_earlier_queue(tmp_path: Path) -> None:
    """The first one succeeds, so its journal stays; all of the second one fails."""
    asked = ("queue", written(tmp_path, "sh train.sh"), *PAIR)
    trains = ("true", (), 0), ("false", (), 6), ("echo 1 >> ran", ("--resume",), 0)
    for script, more, code in trains:
        (tmp_path / "train.sh").write_text(script)
        here(*asked, *more, code=code, cwd=tmp_path)
    assert (tmp_path / "ran").exists()


@cases("output", (), ("-o", "queue.json"))
def test_the_resume_command_that_a_queue_prints_can_be_run(
    output: tuple[str, ...], tmp_path: Path
) -> None:
    """Though nothing has succeeded, so that all of it is run again."""
    trials = written(tmp_path, "[ -e mended ]")
    asked = (*PAIR, *output, "--gpus", "0", "1", trials)
    done = here("queue", *asked, code=6, cwd=tmp_path)
    (tmp_path / "mended").touch()
    printed = done.stderr.splitlines()[-1].strip()
    done = here(printed.removeprefix("gpubalance "), code=0, cwd=tmp_path)
    assert "0 of 1 commands had succeeded before" in done.stderr


def test_queues_that_pipes_bring_are_known_by_their_commands(tmp_path: Path) -> None:
    """Another queue from a pipe, begun in between in the same folder, does not replace the first."""

    def piped(*commands: str, resume: bool = False) -> str:
        asked = (PROGRAM, "queue", "-", *PAIR, *["--resume"][: int(resume)])
        how: Any = {"cwd": tmp_path, "capture_output": True, "text": True}
        done = subprocess.run(asked, input="\n".join(commands), check=False, **how)
        assert done.returncode == (0 if "true" in commands else 6)
        return str(done.stderr)

    piped("echo 1 >> ran", "false")
    piped("false", "echo 2 >> ran")
    assert "1 of 2 commands had" in piped("echo 1 >> ran", "true", resume=True)
    assert "1 of 2 commands had" in piped("true", "echo 2 >> ran", resume=True)
    assert (tmp_path / "ran").read_text().split() == ["1", "2"]
    piped("echo 1 >> ran", "false")  # begins anew
    assert "1 of 2 commands had" in piped("echo 1 >> ran", "true", resume=True)
    assert (tmp_path / "ran").read_text().split() == ["1", "2", "1"]
    piped("echo 1 >> ran", "echo 3 >> ran", "false")  # begins anew, as half of one
    piped(
        "echo 1 >> ran", "echo 4 >> ran", "echo 5 >> ran", "false"
    )  # has little in common
    again = piped("echo 1 >> ran", "echo 3 >> ran", "true", resume=True)
    assert "2 of 3 commands had" in again


def test_commands_that_a_shell_passes_are_resumed_as_typed(tmp_path: Path) -> None:
    for first, more, says in (
        ("false", "", "fix them; --resume"),
        ("true", "--resume", "1 of 2 commands"),
    ):
        line = (
            f"{PROGRAM} queue <(echo {first}; echo true) --simulate {QUICK_PAIR} {more}"
        )
        how: Any = {"cwd": tmp_path, "capture_output": True, "text": True}
        done = subprocess.run(["bash", "-c", line], check=False, **how)
        assert done.returncode == (0 if more else 6)
        assert says in done.stderr
        assert "/dev/fd/" not in done.stderr


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
)
def test_an_ended_queue_leaves_no_process(
    number: int, code: int, tmp_path: Path
) -> None:
    deaf = "trap '' INT TERM; echo begun; sleep 300 & setsid sleep 300 & sleep 300"
    trials = written(tmp_path, deaf, "sleep 300 | sleep 300", "true")
    process = start("queue", trials, *PAIR, "--json", cwd=tmp_path)
    lines_until(process, "002 begins")
    while len(children := children_of(process.pid)) < 9:
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert all(gone(child.pid) for child in children)
    if number != signal.SIGKILL:
        commands = Queue.model_validate_json(out).commands
        assert [bool(command.log) for command in commands] == [True, True, False]
        words = "0 of 3 commands had finished; the running ones were stopped"
        assert words in err


def test_a_command_that_is_killed_takes_its_children_along(tmp_path: Path) -> None:
    """A command that is killed takes its children along and a killed child only its command."""
    first = "sleep 300 & setsid sleep 300 & sleep 301; true"
    trials = written(tmp_path, first, "sleep 302; exit 4")
    process = start("queue", trials, *PAIR, cwd=tmp_path)
    lines_until(process, "002 begins")
    shell = "sh -c " + first
    named = dict[str, psutil.Process]()
    children: list[psutil.Process] = []
    while len(children) < 8 or not {shell, "sleep 302"} <= named.keys():
        children = children_of(process.pid)
        named = {" ".join(child.cmdline()): child for child in children}
        time.sleep(0.05)
    named[shell].kill()
    named["sleep 302"].kill()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 6, err
    assert all(gone(child.pid) for child in children)
    assert "with exit code 137" in out
    assert "with exit code 4" in out


UNREAD = "trials.txt: the shell cannot parse `"
ON = "the command continues on the next line"
LOGS = "can't write to --logs"


@cases(
    "content, options, code, says",
    (None, PAIR, 2, "can't read trials.txt: No such file or directory"),
    ("\n# nothing\n", PAIR, 4, "trials.txt contains no command"),
    ("echo fine\necho 'not\n", PAIR, 4, UNREAD + "echo 'not`"),
    ("for n in 1 2; do\necho $n\ndone\n", PAIR, 4, UNREAD + "for n in 1 2; do`"),
    ("for n in 1 2\ndo train $n; done\n", PAIR, 4, UNREAD + "for n in 1 2`"),
    ("train \\\n --lr 1\n", PAIR, 4, f"{UNREAD}train \\`: {ON}"),
    (b"a\0b", PAIR, 4, "trials.txt is not text"),
    ("true", (), 3, "no NVIDIA driver"),
    ("true", (*PAIR, "--logs", "/proc/logs"), 3, f"{LOGS} /proc/logs"),
    ("true", (*PAIR, "--logs", "trials.txt"), 3, f"{LOGS} trials.txt: it is a file"),
    ("true", (*PAIR, "--logs", "\udce9"), 2, r"--logs '\udce9' is not UTF-8"),
)
def test_what_is_wrong_is_said_before_anything_runs(
    content: str | bytes | None, options: Any, code: int, says: str, tmp_path: Path
) -> None:
    if content is not None:
        as_bytes = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "trials.txt").write_bytes(as_bytes)
    done = here("queue", "trials.txt", *options, code=code, cwd=tmp_path)
    assert f"error: {says}" in done.stderr
    assert "\n  → " in done.stderr
    assert not done.stdout


def test_a_full_disk_stops_a_log_and_not_the_command(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "001.log").symlink_to("/dev/full")
    trials = written(tmp_path, "seq 20000; echo end > ended")
    words = f"queue {trials} --logs logs --overwrite -o queue.json"
    done = here(words, *PAIR, code=0, cwd=tmp_path)
    assert (tmp_path / "ended").exists()
    (command,) = read_record(tmp_path / "queue.json", Queue).commands
    assert command.log is None
    assert done.stderr.count("No space left on device: the command continues ") == 1


def test_what_can_not_be_started_fails_alone_and_is_named(tmp_path: Path) -> None:
    """No file may be opened for a while, as at the limit of `ulimit -n`."""
    waits = "while [ ! -e {} ]; do sleep 0.1; done"
    lines = (waits.format("a"), "true", waits.format("b"), "true", "true")
    trials = written(tmp_path, *lines)
    logs = ("--logs", "logs", "-o", "queue.json")
    process = start("queue", trials, *PAIR, "--pull", *logs, cwd=tmp_path)
    lines_until(process, "003 begins on GPU:1")
    queue = psutil.Process(process.pid)
    usual = queue.rlimit(psutil.RLIMIT_NOFILE)
    queue.rlimit(psutil.RLIMIT_NOFILE, (3, usual[1]))
    (tmp_path / "b").touch()
    lines_until(process, "005 failed on GPU:1 .*Too many open files")
    queue.rlimit(psutil.RLIMIT_NOFILE, usual)
    (tmp_path / "a").touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 6, err
    assert "error: 2 of 5 commands failed: 4, 5\n" in err
    said = one_line(out)
    assert re.search(r"004 failed on GPU:1: .*Too many open files; .*ulimit -n", said)
    result = read_record(tmp_path / "queue.json", Queue)
    codes = [command.tries[0].exit for command in result.commands]
    assert codes == [0, 0, 0, None, None]
    here("report", "queue.json", "--html", "page.html", code=0, cwd=tmp_path)
    resumed = ("--resume", "--overwrite")
    done = here("queue", trials, *PAIR, *logs, *resumed, code=0, cwd=tmp_path)
    assert "3 of 5 commands had succeeded before" in done.stderr


def test_a_terminal_shows_what_runs_and_stdin_gives_commands(tmp_path: Path) -> None:
    prints = "printf 'epoch 1\\repoch 2\\n'; sleep 3 # " + 99 * "long "
    trials = written(tmp_path, prints, "sleep 1; exit 7")
    script = f"{PROGRAM} queue - --simulate {QUICK_PAIR} < {trials}"
    code, seen = command_in_terminal(["sh", "-c", script], 80)
    assert code == 6
    assert seen.ever("2 running, 0 waiting, 0 ended")
    assert seen.ever("GPU:0  001   0:00:0")
    assert seen.ever("       epoch 2")
    assert seen.ever("GPU:1  idle")
    assert "Traceback" not in seen.written.decode()


def test_wide_characters_are_cut_at_the_terminals_edge() -> None:
    devices = find_machine(2).devices
    queued = QueuedCommand(number=1, command="echo " + 60 * "\u8a9e")
    running = RunningCommand(0, queued, time.monotonic(), 60 * "\u8a9e")
    lines = running_lines(devices, [running], 80, 10)
    widths = [line.cell_len for line in lines]
    assert widths[:2] == pytest.approx([80, 80], abs=1)
    assert widths[2] == 11
    assert max(widths) <= 80
