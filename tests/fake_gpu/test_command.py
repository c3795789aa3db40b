"""`python -m tests.fake_gpu`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.support.python import python


def test_any_command_runs_on_such_a_machine(tmp_path: Path, monkeypatch: Any) -> None:
    # The test process hides GPUs from its own TensorFlow.
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    gpus = ["--memory", "3GiB,2GiB", "--names", "A,B", "--folder", str(tmp_path / "m")]
    asked = ["-m", "tests.fake_gpu", *gpus, "--", "gpubalance", "devices"]
    done = python(*asked, check=True)
    assert re.search(r"(?m)^0 +A +0000:01:00.0 +8.6 +3.00 GiB", done.stdout)
    assert re.search(r"(?m)^1 +B +0000:02:00.0 +8.6 +2.00 GiB", done.stdout)
