"""`gpubalance compare` as a user runs it, on results of real runs that are kept in tests/saved."""

from __future__ import annotations

from pathlib import Path

from gpubalance.results.comparison import Comparison
from tests.cli.program import here, typed
from tests.jobs.test_compare import BASELINE, OTHER, slower
from tests.support.known import known


def test_a_gate_prints_the_comparison_and_exits_with_9(tmp_path: Path) -> None:
    a, b, slow = (str(tmp_path / f"{name}.json") for name in ("a", "b", "slow file"))
    for path, run in ((a, BASELINE), (b, OTHER), (slow, slower(OTHER, 1.07))):
        Path(path).write_text(run.model_dump_json())
    assert here("compare", a, b, "--fail-slower", "5%").returncode == 0
    kept = tmp_path / "kept.json"
    asked = typed(f"--fail-slower 5 --json -o {kept}")
    done = here("compare", a, b, slow, *asked, code=9)
    assert "slow file.json is " in done.stderr
    assert "more than --fail-slower 5%" in done.stderr
    found = Comparison.model_validate_json(done.stdout)
    assert Comparison.model_validate_json(kept.read_text()) == found
    ratios = [known(against.ratio) for against in found.against_first]
    assert [ratio.verdict for ratio in ratios] == ["no difference", "slower"]
