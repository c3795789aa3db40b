"""`gpubalance guide`, in a pipe and in a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from gpubalance.guide.chapters import names
from tests.cli.program import PROGRAM, broken_tensorflow, gpubalance

ISSUED = (
    "probe balance train exactness compare report tensorboard numbers profiles shell results gpus troubles overnight"
)


def test_without_a_chapter_it_lists_them(tmp_path: Path) -> None:
    done = gpubalance("guide", environment=broken_tensorflow(tmp_path))
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[: len(names())]] == names()
    assert {*ISSUED.split(), "benchmarks"} <= set(names())
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", names())
def test_a_pipe_gets_the_markdown(name: str) -> None:
    done = gpubalance("guide", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# ")
    assert "\x1b" not in done.stdout
    assert "<!--" not in done.stdout


def test_a_reader_who_has_seen_enough_is_no_error() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    process = subprocess.Popen([PROGRAM, "guide", "results"], stdout=writes, stderr=subprocess.PIPE)
    os.close(writes)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 0


def test_an_unknown_chapter_names_the_nearest() -> None:
    done = gpubalance("guide", "prob")
    assert (done.returncode, done.stdout) == (2, "")
    assert "probe" in done.stderr
    assert "gpubalance guide lists" in gpubalance("guide", "zzz\x1b[31m").stderr


def on_a_terminal(chapter: str = "numbers", **variables: str) -> str:
    """What it writes to one, through `cat` for a pager."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "60", "PAGER": "cat", "MANPAGER": "cat", **variables}
    process = subprocess.Popen([PROGRAM, "guide", chapter], stdin=theirs, stdout=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 1 << 16):
            shown += part
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    assert process.wait(60) == 0
    return shown.decode()


def test_a_terminal_gets_it_rendered() -> None:
    shown = on_a_terminal()
    assert "\x1b[1" in shown
    assert "# The numbers" not in shown
    assert "Σ bᵢ / T" in shown


def test_a_table_loses_no_name_on_a_narrow_terminal() -> None:
    assert "…" not in on_a_terminal("results", COLUMNS="40")


def test_a_dumb_terminal_gets_no_escapes() -> None:
    assert "\x1b" not in on_a_terminal(TERM="dumb")
