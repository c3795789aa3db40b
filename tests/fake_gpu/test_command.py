"""`python -m tests.fake_gpu`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.cli.program import ROOT

# The test process hides GPUs from its own TensorFlow.
SHOWN = {
    name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"
}


def test_any_command_runs_on_such_a_machine(tmp_path: Path) -> None:
    gpus = ["--memory", "3GiB,2GiB", "--names", "A,B", "--folder", str(tmp_path / "m")]
    asked = [*gpus, "--", "gpubalance", "devices"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fake_gpu", *asked],
        cwd=ROOT,
        env=SHOWN,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"(?m)^0 +A +0000:01:00.0 +8.6 +3.00 GiB", done.stdout)
    assert re.search(r"(?m)^1 +B +0000:02:00.0 +8.6 +2.00 GiB", done.stdout)
