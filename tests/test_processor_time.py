"""What `scripts/test --durations` writes, and `scripts/bench tests` shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.benches import tests as bench
from tests.cli.program import ROOT
from tests.support.processor_time import SuiteTimes, Taken, read_times

CONFTEST = """
from tests.support.processor_time import pytest_addoption, pytest_configure
"""
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


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one", "workers"])
def test_a_tests_time_has_its_set_up_and_its_children(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_two.py").write_text(TESTS)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    words = ("-q", "--test-times", "build/times.json", *options, "test_two.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    times = read_times(tmp_path / "build/times.json")
    idle, busy = (times.tests[f"test_two.py::test_{name}"] for name in ("idle", "busy"))
    assert busy.processor_s >= BUSY_S + busy.children_s
    assert busy.children_s >= BUSY_S > idle.processor_s
    assert (idle.is_full, busy.is_full) == (False, True)
    assert times.processor_s > busy.processor_s + idle.processor_s


def test_the_table_has_a_row_for_each_folder_and_the_part_of_each_tier() -> None:
    times = SuiteTimes(
        processor_s=20.0,
        wall_s=12.0,
        tests={
            "tests/cli/test_run.py::test_a": Taken(9.0, 8.0, 5.0, is_full=True),
            "tests/cli/test_run.py::test_b[x/y::z]": Taken(
                2.0, 0.0, 4.0, is_full=False
            ),
            "tests/test_map.py::test_c": Taken(1.5, 0.5, 1.0, is_full=False),
        },
    )
    assert list(bench.table_of(times)) == [
        "                           tests   processor in children  first tier     wall",
        "tests/cli                      2      11.0 s       8.0 s       2.0 s      9 s",
        "tests                          1       1.5 s       0.5 s       1.5 s      1 s",
        "all                            3      12.5 s       8.5 s       3.5 s     10 s",
        "imports and collection                 7.5 s",
        "12 s of wall time in all; the slowest tests are",
        "     9.0 s all  tests/cli/test_run.py::test_a",
        "     2.0 s      tests/cli/test_run.py::test_b[x/y::z]",
        "     1.5 s      tests/test_map.py::test_c",
    ]


def test_without_times_it_is_said_what_writes_them(tmp_path: Path) -> None:
    (line,) = bench.main(tmp_path / "none.json")
    assert line.endswith("`scripts/test --durations all` writes it")


def test_a_test_that_needs_another_one_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(
        "import os\n\ndef test_first():\n    os.environ['FIRST_WAS_HERE'] = '1'\n\n"
        "def test_second():\n    assert os.environ['FIRST_WAS_HERE']\n"
    )
    failed, *_, summary = bench.alone_in(tmp_path, 50, seed=7)
    assert failed == "FAILED test_two.py::test_second"
    assert summary == "2 of 2 tests each alone, 1 failed; seed 7"
