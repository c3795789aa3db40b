"""What is kept on disk, whatever happens while it is written."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpubalance.system.state import new_log, state_folder, sweep, write_whole
from tests.render.samples import PROBE
from tests.support.in_process import Program
from tests.support.python import python


def test_what_a_killed_process_had_begun_to_write_is_taken_away(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    names = ("plan", "other")
    left = [tmp_path / f".{name}.json.{dead.pid}.0123abcd.tmp" for name in names]
    living = tmp_path / f".plan.json.{os.getppid()}.0123abcd.tmp"
    others = tmp_path / ".plan.json.tmp"
    two_hours_ago_s = time.time() - 7200
    for path in (*left, living, others):
        path.touch()
        os.utime(path, (two_hours_ago_s, two_hours_ago_s))
    # In a shared folder the process may live on another host, and rename its file next
    young = tmp_path / f".plan.json.{dead.pid}.4567abcd.tmp"
    young.touch()
    write_whole(tmp_path / "plan.json", "{}")
    are_there = [path.exists() for path in (*left, living, others, young)]
    assert are_there == [False, True, True, True, True]
    sweep(tmp_path)
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {living.name, others.name, young.name, "plan.json"}


def test_a_link_is_not_written_through(tmp_path: Path, in_process: Program) -> None:
    """Another user who knows the process can lay it there, as could a process before it."""
    own = tmp_path / "own.txt"
    own.write_text("not to be touched")
    (tmp_path / "shared").mkdir()
    result = tmp_path / "shared" / "plan.json"
    link = result.with_name(f".{result.name}.{os.getpid()}.tmp")
    link.symlink_to(own)
    before = os.umask(0o027)
    try:
        done = in_process(["plan", str(PROBE), "-o", str(result)])
    finally:
        os.umask(before)
    assert done.code == 0, done.err
    assert own.read_text() == "not to be touched"
    assert not result.is_symlink()
    assert result.stat().st_mode & 0o777 == 0o640
    assert sorted(result.parent.iterdir()) == [link, result]


def test_what_has_the_temporary_name_already_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has the temporary name already is neither opened nor taken away.

    If somebody guessed it after all.
    """
    monkeypatch.setattr(os, "urandom", bytes)
    own = tmp_path / "own.txt"
    link = tmp_path / f".plan.json.{os.getpid()}.00000000.tmp"
    link.symlink_to(own)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "plan.json", "{}")
    assert list(tmp_path.iterdir()) == [link]


def test_an_interrupt_while_it_is_written_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from gpubalance.system.state import write_whole\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "os.fsync = lambda descriptor: signal.raise_signal(signal.SIGINT)\n"
        "try:\n"
        "    write_whole(Path(sys.argv[1]), 'text')\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = python("-c", code, str(tmp_path / "x.json"), check=True)
    assert done.stdout == "interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_without_a_state_folder_a_process_has_one_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    assert state_folder("test-logs") == state_folder("test-logs")
    state_folder("test-logs").rmdir()


def test_the_logs_of_a_night_that_goes_on_stay() -> None:
    mine = new_log("run")
    kept = 50
    mine.touch()
    others = [
        mine.with_name(f"29991231T{number:06}.000000-{2**22 + 1}-probe.log")
        for number in range(kept + 10)
    ]
    for log in others:
        log.touch()
    new_log("probe")
    assert mine.exists()
    assert not others[0].exists()
    assert len([log for log in others if log.exists()]) == kept
