"""The step over several processes, with TensorFlow's real collectives between them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpubalance.settings.cluster import Cluster
from gpubalance.workers.process import free_addresses
from tests.engine.rank import BATCHES, CASES, RAGGED
from tests.engine.test_exact import TOLERANCE, difference, train_on_one_device

ROOT = Path(__file__).parents[2]


# Of three, which tests/training/test_hosts.py has too, in a campaign.
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.campaign)])
def test_uneven_steps_over_processes_equal_one_device(tensorflow: Any, tmp_path: Path, count: int) -> None:
    assert sum(BATCHES[count]) == 100
    addresses = free_addresses(count)
    clusters = [Cluster(addresses=addresses, rank=rank) for rank in range(count)]
    command = [sys.executable, "-m", "tests.engine.rank"]
    ranks = [
        subprocess.Popen([*command, one.model_dump_json(), str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for one in clusters
    ]
    try:
        told = [rank.communicate(timeout=200)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * count, told
    finally:
        for rank in ranks:
            rank.kill()
    for name, (make_model, make_optimizer, _) in CASES.items():
        expected, _ = train_on_one_device(make_model, make_optimizer, last=RAGGED)
        found = [np.load(tmp_path / f"{name}-{rank}.npz") for rank in range(count)]
        first, *others = [[one[f"arr_{i}"] for i in range(len(expected))] for one in found]
        assert difference(first, expected) < TOLERANCE
        assert all((a == b).all() for other in others for a, b in zip(first, other, strict=True))
        assert all(one["traces"] == 1 for one in found)  # splits change without another
