"""`gpubalance compare` as a user runs it, on results of real runs that are kept in tests/saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpubalance.results.comparison import Comparison
from tests.cli.program import PROGRAM, here
from tests.cli.terminal import command_in_terminal
from tests.jobs.test_compare import BASELINE, OTHER, slower


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    for name, run in (("a", BASELINE), ("b", OTHER), ("slow file", slower(OTHER, 1.07))):
        (tmp_path / f"{name}.json").write_text(run.model_dump_json())
    return str(tmp_path / "a.json"), str(tmp_path / "b.json"), str(tmp_path / "slow file.json")


def test_a_gate_prints_the_comparison_and_exits_with_9(files: tuple[str, str, str], tmp_path: Path) -> None:
    a, b, slow = files
    assert here("compare", a, b, "--fail-slower", "5%").returncode == 0
    kept = tmp_path / "kept.json"
    done = here("compare", a, b, slow, "--fail-slower", "5", "--json", "-o", str(kept), code=9)
    assert "slow file.json is " in done.stderr
    assert "more than --fail-slower 5%" in done.stderr
    found = Comparison.model_validate_json(done.stdout)
    assert Comparison.model_validate_json(kept.read_text()) == found
    assert json.loads(done.stdout)["kind"] == "comparison"
    assert [against.ratio and against.ratio.verdict for against in found.against_first] == ["no difference", "slower"]


def test_a_narrow_terminal_gets_narrow_lines(files: tuple[str, str, str]) -> None:
    code, seen = command_in_terminal([PROGRAM, "compare", *files], 40)
    assert code == 0
    assert max(map(len, seen.written.decode().splitlines())) <= 40
