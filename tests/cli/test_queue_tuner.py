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
from typing import Any

import pytest

from tests.cli.program import QUICK_PAIR, gpubalance
from tests.guide.documents import read

DATA = "import numpy as np\nx = np.random.default_rng(0).normal(size=(64, 8))\n"
DATA += "x = x.astype('float32')\ny = x.sum(axis=1)\n"


@pytest.mark.full  # three of TensorFlow's processes; `--pull` is in test_queue.py
def test_the_search_of_the_guide_runs_on_simulated_devices(tmp_path: Path) -> None:
    (script,) = re.findall(r"(?s)```python\n# search.py\n(.*?)```", read("queue"))
    script = script.replace("max_trials=6", "max_trials=3")
    script = script.replace("epochs=2", "epochs=1, verbose=2")
    (tmp_path / "search.py").write_text(DATA + script)
    worker = f"KERASTUNER_TUNER_ID=worker-{{number}} {sys.executable} search.py\n"
    (tmp_path / "workers.txt").write_text(worker * 2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    oracle = {"KERASTUNER_ORACLE_IP": "127.0.0.1", "KERASTUNER_ORACLE_PORT": str(port)}
    own = {"KERASTUNER_TUNER_ID": "chief", "CUDA_VISIBLE_DEVICES": "-1", **oracle}
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "search.py"]
    chief = subprocess.Popen(command, cwd=tmp_path, env=os.environ | own, **silent)
    try:
        words = f"queue --pull workers.txt --simulate {QUICK_PAIR} --json -q"
        done = gpubalance(words, code=0, cwd=tmp_path, environment=oracle)
        commands = json.loads(done.stdout)["commands"]
        assert [command["tries"][0]["device"] for command in commands] == [0, 1]
        assert chief.wait(60) == 0
    finally:
        chief.kill()
    trials = tmp_path.glob("search/units/trial_*/trial.json")
    ended = [json.loads(path.read_text())["status"] for path in trials]
    assert ended == ["COMPLETED"] * 3
    workers = {path.name for path in tmp_path.glob("search/units/worker-*.json")}
    # One of them may take all trials before the other has loaded TensorFlow.
    assert workers
    assert workers <= {"worker-1.json", "worker-2.json"}
