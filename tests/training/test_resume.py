"""A training that is killed in the middle of an epoch goes on from its backup, with another split too."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]

# argv: the folder of the backup, the file for the weights, the batches, and at which batch of the second epoch to die.
SCRIPT = """
import os, signal, sys
import numpy as np
import gpubalance
from tests.training.cases import classifier, numbers

backup, weights, batches, dies_at = sys.argv[1], sys.argv[2], [int(b) for b in sys.argv[3].split("/")], int(sys.argv[4])
split = gpubalance.Split(batches=batches, simulate=str(len(batches)))
with split.scope():
    import keras
    keras.utils.set_random_seed(3)
    model = classifier("adam")()

class Dies(keras.callbacks.Callback):
    epoch = 0
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (1, dies_at):
            os.kill(os.getpid(), signal.SIGKILL)

callbacks = [keras.callbacks.BackupAndRestore(backup), Dies()]
split.fit(model, *numbers(340), epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
np.savez(weights, *model.get_weights())
"""


def run(folder: Path, name: str, batches: str, dies_at: int) -> int:
    command = [sys.executable, "-c", SCRIPT, str(folder / name), str(folder / f"{name}.npz"), batches, str(dies_at)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False).returncode


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the weights of a whole training, and the backup of one that was killed."""
    folder = tmp_path_factory.mktemp("trained")
    assert run(folder, "whole", "70/30", -1) == 0
    assert run(folder, "killed", "70/30", 1) == -signal.SIGKILL
    return folder


@pytest.mark.parametrize("then", ["70/30", "10/50/40"])
def test_a_killed_training_ends_with_the_weights_of_an_undisturbed_one(
    trained: Path, tmp_path: Path, then: str
) -> None:
    shutil.copytree(trained / "killed", tmp_path / "killed")
    assert run(tmp_path, "killed", then, -1) == 0
    whole, resumed = np.load(trained / "whole.npz"), np.load(tmp_path / "killed.npz")
    assert max(float(abs(whole[name] - resumed[name]).max()) for name in whole.files) < 1e-6


def test_the_example_trains_and_tells_where_the_time_goes() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "example.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Epoch 3/3" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("GPU:1 Quick 2: compute ")
