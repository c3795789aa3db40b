"""`gpubalance independent` with the real engine: two TensorFlow workers train at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubalance.results.independent import Independent
from tests.cli.program import TINY, here, typed
from tests.cli.test_independent import contended
from tests.support.known import known


@pytest.mark.usefixtures("forked")
def test_contention_of_the_profile_is_found_in_real_steps(tmp_path: Path) -> None:
    profile = contended(tmp_path, 3, "quick-pair")
    path = tmp_path / "result.json"
    asked = f"independent --simulate {profile} --batches 120 80 --model {TINY}"
    done = here(asked, *typed("--windows 2 --duration 0.5 -o"), str(path), code=0)
    result = Independent.model_validate_json(path.read_text())
    for replica in result.measured:
        # This machine may be late, alone or at once, but by no means three times.
        assert 0.5 < known(replica.contention) < 0.8
    assert len(result.measured) == 2
    assert 0.2 < known(result.throughput).median / known(result.solo_sum) < 0.5
    assert result.overlap_s >= 0.5
    assert "less than alone" in done.stdout
