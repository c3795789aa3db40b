"""What `scripts/bench tests` shows of the times of tests, and `scripts/bench alone` of drawn ones."""

from __future__ import annotations

from pathlib import Path

from scripts.benches import tests as bench
from scripts.benches.processor_time import SuiteTimes, Taken


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
