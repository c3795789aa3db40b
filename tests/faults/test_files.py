"""Rows 31, 32 and 34: files that can't be written, or exist; names that hold anything."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.workers.failures import LONGEST_BYTES
from tests.cli.program import PROGRAM, QUICK_PAIR, here, typed
from tests.faults.machine import BRIEF, Machine, in_step
from tests.jobs.probes import probe_of
from tests.render.samples import DATA
from tests.stand_in import TWO_UNLIKE_GPUS
from tests.support.cases import cases
from tests.support.in_process import Program


@pytest.mark.parametrize(
    ("mount", "says"),
    [("size=64k", "No space left on device"), ("ro", "Read-only file system")],
    ids=["full", "read-only"],
)
def test_31_a_full_disk_is_found_first(tmp_path: Path, mount: str, says: str) -> None:
    """A real one: a file system in memory that only this program sees."""
    folder = tmp_path / "disk"
    folder.mkdir()
    private = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    mounted = f"mount -t tmpfs -o {mount} none {folder}"
    files: Any = {"env": Machine(tmp_path).variables, "capture_output": True}
    if (
        shutil.which("unshare") is None
        or subprocess.run([*private, mounted]).returncode
    ):
        pytest.skip("this machine lets no user mount a file system of their own")
    run = f"{mounted} && exec {PROGRAM} run -o {folder}/run.json"
    done = subprocess.run([*private, run], text=True, timeout=120, **files)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"error: can't write -o {folder}/run.json: {says}")


def test_31_one_that_fills_later_leaves_it_on_stdout(tmp_path: Path) -> None:
    """One that fills while it is measured leaves the result on stdout.

    The folder is gone by the time it is written to.
    """
    folder = tmp_path / "results"
    folder.mkdir()
    steps = in_step(f"shutil.rmtree({str(folder)!r})", when="number == 8")
    run = ("run", *BRIEF, "-o", str(folder / "run.json"), "--json", "--quiet")
    done = Machine(tmp_path, steps).runs(*run, code=3)
    assert f"error: can't write {folder / 'run.json'}: No such file" in done.stderr
    assert json.loads(done.stdout)["complete"] is True


def test_31_a_journal_that_can_not_be_written_ends_no_probe(tmp_path: Path) -> None:
    """A journal that can not be written ends the keeping and not the probe.

    A real limit on file sizes, to which a full disk or a quota looks the same.
    """
    # Python would keep what it compiles too, cut at the limit.
    # Every later program would fail to read that.
    variables = Machine(tmp_path, PYTHONDONTWRITEBYTECODE="1").variables
    done = subprocess.run(
        [PROGRAM, *typed("probe --max-batch 8 --duration 0.2 --json")],
        env=variables,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "can't write the journal" in done.stderr
    assert "the command continues, but --resume will not have" in done.stderr
    assert json.loads(done.stdout)["complete"] is True
    (tmp_path / "file").write_text("")
    no_state = {"XDG_STATE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    nowhere = Machine(tmp_path, **no_state)
    nowhere.runs("run", *BRIEF, "--gpus", "0")


def test_32_an_output_file_that_exists_is_not_replaced_unasked(tmp_path: Path) -> None:
    path = tmp_path / "results" / "run.json"
    path.parent.mkdir()
    path.write_text("mine")
    machine = Machine(tmp_path)
    assert "--overwrite" in machine.refuses(2, "probe", "-o", str(path)).stderr
    assert path.read_text() == "mine"
    machine.runs("run", *BRIEF, "-o", str(path), "--overwrite")
    assert json.loads(path.read_text())["kind"] == "run"
    assert [one.name for one in path.parent.iterdir()] == ["run.json"]


SHOWN = "$(touch ran)[red]bold[/red]<script>alert(1)</script>"
NASTY = f"{SHOWN}\x1b]0;owned\x07\u202e".replace("[red]b", "\x1b[31m[red]b")


def test_34_a_name_with_escapes_and_markup_is_shown_as_it_is(tmp_path: Path) -> None:
    """A name with escapes and markup is shown as it is and a long one fits."""
    profile = tmp_path / "nasty.toml"
    profile.write_text(
        f"[[device]]\nname = {json.dumps(NASTY)}\nalpha_s = 0.01\nbeta_s = 0.001\n"
    )
    machine = Machine(tmp_path)
    for command in (("run", *BRIEF), ("devices",)):
        done = machine.runs(*command, "--simulate", str(profile))
        assert "[red]" in done.stdout
        assert "\x1b" not in done.stdout + done.stderr
        assert "\u202e" not in done.stdout + done.stderr
    listed = machine.result("devices", "--simulate", str(profile))
    assert listed["simulated"][0]["name"] == SHOWN
    long = TWO_UNLIKE_GPUS.replace("NVIDIA GeForce GTX 1080 Ti", f"[red]{'x' * 10_000}")
    done = Machine(tmp_path, gpus=long).runs("run", *BRIEF)
    assert "[red]xxx" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_32_a_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    link = tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    probe = tmp_path / "probe.json"
    probe.write_text(probe_of(simulated_devices(QUICK_PAIR)[0]).model_dump_json())
    here("plan", str(probe), "-o", str(link), "--overwrite", code=0)
    assert link.is_symlink()
    assert json.loads(real.read_text())["kind"] == "plan"


def test_32_another_s_file_stays(tmp_path: Path) -> None:
    command = typed("probe --max-batch 16 --duration 0.1")
    path = tmp_path / "result.json"
    steps_told = tmp_path / "steps"
    steps = f"""
def step(devices, batches, number):
    if number == 8:
        pathlib.Path({str(path)!r}).write_text("another's")
    pathlib.Path({str(steps_told)!r}).touch()
"""
    machine = Machine(tmp_path, steps)
    done = machine.runs(*command, "-o", str(path), "--json", "--quiet", code=3)
    assert "another program created" in done.stderr
    assert "--resume continues it" in done.stderr
    measured = json.loads(done.stdout)
    assert measured["complete"] is True
    assert path.read_text() == "another's"
    steps_told.unlink()
    other = str(tmp_path / "other.json")
    resumed = machine.result(*command, "-o", other, "--quiet", "--resume")
    both = resumed["probes"], measured["probes"]
    curves, expected = ([one["curve"] for one in probes] for probes in both)
    assert curves == expected
    assert resumed["environment"] == measured["environment"]
    assert resumed["model"] == measured["model"]
    assert not steps_told.exists()


def test_32_what_goes_on_replaces_no_finished_result(tmp_path: Path) -> None:
    """What goes on replaces its own unfinished result and no finished one."""
    path = tmp_path / "run.json"
    mark = tmp_path / "mark"
    dies = f"pathlib.Path({str(mark)!r}).touch(), os.kill(os.getpid(), signal.SIGKILL)"
    once = f"number > 40 and not os.path.exists({str(mark)!r})"
    machine = Machine(tmp_path, in_step(dies, when=once))
    command = ("run", "--windows", "9", "--duration", "0.2", "-o", str(path), "--json")
    assert "--resume continues it" in machine.runs(*command, code=6).stderr
    assert json.loads(path.read_text())["complete"] is False
    machine.refuses(2, *command)
    machine.refuses(2, "probe", "--max-batch", "8", "-o", str(path), "--resume")
    machine.refuses(2, *command, "--seed", "5", "--resume")
    machine.runs(*command, "--resume")
    assert json.loads(path.read_text())["complete"] is True
    machine.refuses(2, *command, "--resume")


@cases(
    "words",
    "run --simulate 2 --windows 1",
    "run --simulate 2 -o run.json",
    "queue --simulate 2 ../trials.txt",
)
def test_32_a_deleted_current_folder_is_one_error(tmp_path: Path, words: str) -> None:
    (tmp_path / "trials.txt").write_text("true\n")
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f'exec "{sys.executable}" -m gpubalance {words}'
    script = ["sh", "-c", f"cd {gone} && rmdir {gone} && {command}"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-2:] == [
        "error: the current folder was deleted",
        "  → change into one that exists: cd ~",
    ]


def test_32_a_deleted_current_folder_is_none_of_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: Program
) -> None:
    """Also where -o is there, as it is then looked for among what the command reads."""
    probe, plan = str(DATA / "pair-probe.json"), str(tmp_path / "plan.json")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for more in ([], ["--overwrite"]):
        assert in_process(["plan", probe, "-o", plan, *more]).code == 0
    assert in_process(["plan", plan, "-o", plan, "--overwrite"]).code == 2
    assert in_process(["report", plan, "--share", plan, "--overwrite"]).code == 2
    done = in_process(["report", "gone.json", "--share", plan, "--overwrite"])
    assert "can't read gone.json" in done.err


def test_32_a_name_that_is_not_utf8_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: Program
) -> None:
    """Python reads its bytes as surrogates, which no JSON for a worker can hold."""
    folder = tmp_path / "f\udce9"
    folder.mkdir()
    launch = ["launch", str(DATA / "pair-balance.json"), __file__]
    run = ["run", "--simulate", "2", "--windows", "1"]
    commands = tmp_path / "commands.txt"
    commands.write_text("true")
    queue = ["queue", "--simulate", "2", str(commands)]
    for code, words, says in (
        (2, [*run, "--trace", "tr\udce9"], "--trace 'tr\\udce9' is not UTF-8"),
        (2, [*launch, "\udce9"], "the script or its argument '\\udce9' is not UTF-8"),
    ):
        done = in_process(words)
        assert (done.code, says in done.err) == (code, True)
    monkeypatch.chdir(folder)
    check = ["check", "--simulate", "2", "--model", "small"]
    for words in (run, check, queue, launch, ["doctor", "--simulate", "2"]):
        done = in_process(words)
        assert done.code == 3
        assert f"the current folder's name is not UTF-8: {str(folder)!r}" in done.err
        assert "run it in another folder" in done.err


def test_32_what_a_model_prints_is_bounded(tmp_path: Path) -> None:
    steps, state = in_step("print('x' * (4 << 20))"), str(tmp_path / "state")
    found = Machine(tmp_path, steps, XDG_STATE_HOME=state).result("run", *BRIEF)
    assert found["steps"] * 4 << 20 > LONGEST_BYTES
    (log,) = (tmp_path / "state").rglob("*.log")
    assert 0 < log.stat().st_size < 2 * LONGEST_BYTES
