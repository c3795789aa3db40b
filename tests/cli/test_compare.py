"""`gpubalance compare` as a user runs it, on results of real runs that are kept in tests/saved."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpubalance.results.comparison import Comparison
from tests.bench.in_process import Program
from tests.cli.program import ROOT, gpubalance
from tests.cli.terminal import command_in_terminal
from tests.jobs.test_compare import BASELINE, OTHER, slower

SAVED = ROOT / "tests" / "saved"


def test_a_result_nested_too_deep_is_no_result(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 200_000)
    done = gpubalance("compare", str(SAVED / "guess.json"), str(path))
    assert (done.returncode, done.stdout) == (4, "")
    assert "is no JSON" in done.stderr


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    for name, run in (("a", BASELINE), ("b", OTHER), ("slow file", slower(OTHER, 1.07))):
        (tmp_path / f"{name}.json").write_text(run.model_dump_json())
    return str(tmp_path / "a.json"), str(tmp_path / "b.json"), str(tmp_path / "slow file.json")


def test_a_gate_prints_the_comparison_and_exits_with_9(files: tuple[str, str, str], tmp_path: Path) -> None:
    a, b, slow = files
    assert gpubalance("compare", a, b, "--fail-slower", "5%").returncode == 0
    kept = tmp_path / "kept.json"
    done = gpubalance("compare", a, b, slow, "--fail-slower", "5", "--json", "-o", str(kept))
    assert done.returncode == 9
    assert "slow file.json is " in done.stderr
    assert "more than --fail-slower 5%" in done.stderr
    found = Comparison.model_validate_json(done.stdout)
    assert Comparison.model_validate_json(kept.read_text()) == found
    assert json.loads(done.stdout)["kind"] == "comparison"
    assert [against.ratio and against.ratio.verdict for against in found.against_first] == ["no difference", "slower"]


def test_a_narrow_terminal_gets_narrow_lines(files: tuple[str, str, str]) -> None:
    program = str(Path(sys.executable).with_name("gpubalance"))
    code, seen = command_in_terminal([program, "compare", *files], 40)
    assert code == 0
    assert max(map(len, seen.written.decode().splitlines())) <= 40


def test_a_redacted_comparison_tells_no_home_folder(files: tuple[str, str, str], tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    done = gpubalance("compare", *files, "--redact", "--json", environment=home)
    assert [result.file for result in Comparison.model_validate_json(done.stdout).results][:1] == ["~/a.json"]
    assert str(tmp_path) not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "gpubalance compare --help"),
        (("guess.json",), 2, "gpubalance compare guess.json OTHER.json"),
        (("guess.json", "nowhere.json"), 4, "can't read nowhere.json"),
        (("guess.json", "../../configs/quick-pair.toml"), 4, "is no JSON"),
        (("guess.json", "balanced.json", "--fail-slower", "0.05"), 2, "write --fail-slower 5%"),
        (("guess.json", "balanced.json", "--fail-slower", "100%"), 2, "for example --fail-slower 5%"),
        (("guess.json", "balanced.json", "--fail-slower", "2,5%"), 2, "for example --fail-slower 5%"),
        (("guess.json", "balanced.json", "-o", "guess.json"), 2, "guess.json exists"),
    ],
)
def test_wrong_inputs_get_one_line_that_says_what_is_right(
    in_process: Program, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, says: str
) -> None:
    monkeypatch.chdir(SAVED)
    done = in_process(["compare", *arguments])
    assert (done.code, done.out) == (code, "")
    assert says in done.err
