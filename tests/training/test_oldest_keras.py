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
FEW = "plain or AdamW or activity or masked or micro or own_train_step or existing or mean_with"


@pytest.fixture(scope="module")
def oldest_keras() -> Path:
    """A folder with it, installed once."""
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
    code = "import sys, keras, pytest; assert keras.__version__ == sys.argv[1]; sys.exit(pytest.main(sys.argv[2:]))"
    files = [str(ROOT / "tests" / "training" / f"test_{name}.py") for name in ("exact", "fit")]
    command = [sys.executable, "-c", code, OLDEST, "-q", "-p", "no:cacheprovider", "-k", FEW, *files]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
