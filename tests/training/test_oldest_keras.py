"""The oldest Keras that is supported: what is leaned on of its insides is there, and training is as exact."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OLDEST = "3.12.4"
FOLDER = Path(sys.prefix) / "oldest-keras"
# Of the optimizer's insides, of those of a loss' reduction, and of what logs and metrics make of it; all cases are for
# the newest Keras.
CASES = (
    ("AdamW, clipped, EMA", (70, 30)),
    ("reduction mean_with_sample_weight", (70, 30)),
    ("metrics of many kinds", (70, 30)),
    ("train_step of one's own", (1, 1, 98)),
)
FEW = (
    *(f"test_exact.py::test_a_split_gives_what_one_device_gives[{name}-{batches}]" for name, batches in CASES),
    "test_fit.py::test_a_models_own_fit_evaluate_and_predict_are_its_splits",
    "test_fit.py::test_moving_averages_are_those_of_all_samples",
    "test_pipelined.py::test_a_loss_that_is_a_sum_stays_one_and_what_is_excluded_from_weight_decay_stays_so",
)


@pytest.fixture(scope="module")
def oldest_keras() -> Path:
    """A folder with the oldest Keras, installed once."""
    if not (FOLDER / f"keras-{OLDEST}.dist-info").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER)]
        done = subprocess.run([*pip, f"keras=={OLDEST}"], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no Keras {OLDEST} to be had: {done.stderr.strip()[-200:]}")
    return FOLDER


def test_the_oldest_keras_trains_as_exactly(oldest_keras: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(oldest_keras), str(ROOT)])}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        environment.pop(name, None)
    code = """
import sys
from gpubalance.workers.serve import lean_import
with lean_import():
    import keras
import pytest
assert keras.__version__ == sys.argv[1]
sys.exit(pytest.main(sys.argv[2:]))
"""
    few = [f"{ROOT}/tests/training/{name}" for name in FEW]
    command = [sys.executable, "-c", code, OLDEST, "-q", "-p", "no:cacheprovider", "-m", "", *few]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
