"""The plugin is compiled once, and no half of it is ever loaded.

Without a compiler its tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import ROOT
from tests.support.python import python

pytestmark = pytest.mark.full  # as the tests with fake GPUs are
ASKS = """
from tests.fake_gpu.build import NoFakeGpus, site_packages
try:
    print(site_packages())
except NoFakeGpus as why:
    print(why)
"""
# A compiler that is slow, and notes each call.
COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo >> "$NOTES"
sleep 0.3
printf whole > "$2"
"""


def start(variables: dict[str, str]) -> subprocess.Popen[str]:
    how: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": ROOT}
    command, own = [sys.executable, "-c", ASKS], os.environ | variables
    return subprocess.Popen(command, env=own, text=True, **how)


def answer(variables: dict[str, str]) -> str:
    out, err = start(variables).communicate(timeout=60)
    return out.strip() or err


@pytest.fixture
def compiler(tmp_path: Path) -> dict[str, str]:
    """The variables of a process with this compiler and an empty cache."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/g++").write_text(COMPILER)
    (tmp_path / "bin/g++").chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    files = {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "NOTES": str(tmp_path / "notes"),
    }
    return files | {"PATH": path}


def calls(compiler: dict[str, str]) -> int:
    return len(Path(compiler["NOTES"]).read_text().splitlines())


def test_two_processes_at_once_compile_once(compiler: dict[str, str]) -> None:
    both = [start(compiler) for _ in range(2)]
    first, second = (process.communicate(timeout=60)[0] for process in both)
    assert first == second
    library = Path(first.strip()) / "tensorflow-plugins/libfakegpu.so"
    assert library.read_text() == "whole"
    assert calls(compiler) == 1


def test_without_a_compiler_the_tests_are_skipped_with_one_line(tmp_path: Path) -> None:
    asked = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/fake_gpu"]
    done = python(*asked, env={"PATH": str(tmp_path)})
    assert done.returncode == 0, done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(skipped) == 1
    assert skipped[0].endswith("no g++ to compile the fake GPUs with")
