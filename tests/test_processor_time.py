"""What `scripts/test --durations` writes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.program import ROOT
from tests.support.processor_time import read_times
from tests.support.python import python

BUSY_S = 0.3
BUSY = f"while time.process_time() < {BUSY_S}: pass"
TESTS = f"""
import subprocess, sys, time
import pytest

@pytest.fixture
def set_up():
    end = time.process_time() + {BUSY_S}
    while time.process_time() < end: pass

def test_idle():
    pass

@pytest.mark.full
def test_busy(set_up):
    subprocess.run([sys.executable, "-c", "import time\\n{BUSY}"], check=True)
"""


OF_TWO = pytest.param(("-n", "2"), marks=pytest.mark.full)


@pytest.mark.parametrize("options", [(), OF_TWO])
def test_it_has_set_up_and_children(options: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "full"  # a folder's name is no mark
    folder.mkdir()
    (folder / "test_two.py").write_text(TESTS)
    shutil.copy(ROOT / "pyproject.toml", folder)
    plugin = ("-p", "tests.support.processor_time")
    asked = ("--test-times", "build/times.json")
    words = ("-q", *plugin, *asked, *options, "test_two.py")
    path = {"PYTHONPATH": str(ROOT)}
    done = python("-m", "pytest", *words, cwd=folder, env=path)
    assert done.returncode == 0, done.stdout + done.stderr
    times = read_times(folder / "build/times.json")
    idle, busy = (times.tests[f"test_two.py::test_{name}"] for name in ("idle", "busy"))
    assert busy.processor_s >= BUSY_S + busy.children_s
    assert busy.children_s >= BUSY_S > idle.processor_s
    assert (idle.is_full, busy.is_full) == (False, True)
    assert times.processor_s > busy.processor_s + idle.processor_s
