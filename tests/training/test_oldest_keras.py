"""The oldest supported Keras has the insides that are leaned on, and trains as exactly."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.cli.program import ROOT
from tests.support.python import python

OLDEST = "3.12.4"
FOLDER = Path(sys.prefix) / "oldest-keras"
EXACT = "test_exact.py::test_a_split_gives_what_one_device_gives"
# FEW are of the optimizer's insides and of what logs and metrics make of it.
# MORE are of a loss' reduction and of Keras' own loop. All cases are for the newest Keras.
FEW = (
    f"{EXACT}[AdamW, clipped, EMA-(70, 30)]",
    f"{EXACT}[metrics of many kinds-(70, 30)]",
)
MORE = (
    f"{EXACT}[reduction mean_with_sample_weight-(70, 30)]",
    f"{EXACT}[train_step of one's own-(1, 1, 98)]",
    "test_fit.py::test_a_models_own_fit_evaluate_and_predict_are_its_splits",
    "test_fit.py::test_moving_averages_are_those_of_all_samples[None]",
    "test_pipelined.py::test_a_loss_that_is_a_sum_stays_one",
)
TESTS = """
import sys
from gpubalance.workers.serve import lean_import
with lean_import():
    import keras
import pytest
assert keras.__version__ == sys.argv[1]
sys.exit(pytest.main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def oldest_keras() -> Path:
    """A folder with the oldest Keras, installed once."""
    if not (FOLDER / f"keras-{OLDEST}.dist-info").is_dir():
        pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        done = python(*pip, str(FOLDER), f"keras=={OLDEST}")
        if done.returncode:
            pytest.skip(f"no Keras {OLDEST} to be had: {done.stderr.strip()[-200:]}")
    return FOLDER


@pytest.mark.full
@pytest.mark.parametrize(
    "tests", [FEW, pytest.param(MORE, marks=pytest.mark.campaign)], ids=["few", "more"]
)
def test_the_oldest_one_is_exact(oldest_keras: Path, tests: tuple[str, ...]) -> None:
    kept = [name for name in os.environ if not name.startswith("PYTEST_XDIST")]
    environment = {name: os.environ[name] for name in kept}
    environment["PYTHONPATH"] = os.pathsep.join([str(oldest_keras), str(ROOT)])
    command = ["-c", TESTS, OLDEST, *["-q", "-p", "no:cacheprovider", "-m"], ""]
    command += [f"{ROOT}/tests/training/{name}" for name in tests]
    done = python(*command, only=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert f"{len(tests)} passed" in done.stdout
