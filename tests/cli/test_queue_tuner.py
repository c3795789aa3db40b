"""Keras Tuner's own search over processes: its chief beside a queue, a worker on each device.

See the guide's queue.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import QUICK_PAIR, gpubalance, typed
from tests.guide.documents import read

DATA = (
    "import numpy as np\nx = np.random.default_rng(0).normal(size=(64, 8)).astype('float32')\ny = "
    "x.sum(axis=1)\n"
)


@pytest.mark.full  # three of TensorFlow's processes; `--pull` is in test_queue.py
def test_the_search_of_the_guide_runs_on_simulated_devices(tmp_path: Path) -> None:
    (script,) = re.findall(r"(?s)```python\n# search.py\n(.*?)```", read("queue"))
    script = script.replace("max_trials=6", "max_trials=3").replace(
        "epochs=2", "epochs=1, verbose=2"
    )
    (tmp_path / "search.py").write_text(DATA + script)
    (tmp_path / "workers.txt").write_text(
        f"KERASTUNER_TUNER_ID=worker-{{number}} {sys.executable} search.py\n" * 2
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    oracle = {"KERASTUNER_ORACLE_IP": "127.0.0.1", "KERASTUNER_ORACLE_PORT": str(port)}
    chief = subprocess.Popen(
        [sys.executable, "search.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            **oracle,
            "KERASTUNER_TUNER_ID": "chief",
            "CUDA_VISIBLE_DEVICES": "-1",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        done = gpubalance(
            *(*typed(f"queue --pull workers.txt --simulate {QUICK_PAIR} --json -q"),),
            code=0,
            cwd=tmp_path,
            environment=oracle,
        )
        assert [
            load["tries"][0]["device"] for load in json.loads(done.stdout)["commands"]
        ] == [0, 1]
        assert chief.wait(60) == 0
    finally:
        chief.kill()
    trials = [
        json.loads(path.read_text())
        for path in tmp_path.glob("search/units/trial_*/trial.json")
    ]
    assert [trial["status"] for trial in trials] == ["COMPLETED"] * 3
    assert {path.name for path in tmp_path.glob("search/units/worker-*.json")} == {
        "worker-1.json",
        "worker-2.json",
    }
