"""A training that is killed in the middle of an epoch goes on from its backup.

It goes on with another split too.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import ROOT
from tests.support.late import keras
from tests.support.python import python
from tests.training.cases import in_split, largest
from tests.training.models import classifier
from tests.training.samples import numbers

pytestmark = [pytest.mark.xdist_group("resume"), pytest.mark.full]


def trained(
    backup: Path, batches: tuple[int, ...], dies_at: int | None = None
) -> list[Any]:
    """The weights after training that continues from the backup; it dies after step `dies_at`."""
    keras.utils.set_random_seed(3)
    split, model = in_split(classifier("adam"), batches=batches)

    def die(*_: Any, **__: Any) -> None:
        if model.optimizer.iterations.numpy() == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    callbacks = [
        keras.callbacks.BackupAndRestore(backup),
        keras.callbacks.LambdaCallback(on_train_batch_end=die),
    ]
    options = {"epochs": 3, "shuffle": False, "verbose": 0}
    split.fit(model, *numbers(340), callbacks=callbacks, **options)
    return list(model.get_weights())


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The backup of a training whose process was killed."""
    backup = tmp_path_factory.mktemp("killed")
    code = """
import sys
from gpubalance.workers.serve import lean_import
with lean_import():
    import tensorflow
from tests.training.test_resume import Path, trained
trained(Path(sys.argv[1]), (70, 30), dies_at=6)  # the second of the second epoch
"""
    done = python("-c", code, str(backup))
    assert done.returncode == -signal.SIGKILL, done.stderr
    return backup


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The weights of a training that was not killed."""
    return trained(tmp_path_factory.mktemp("whole"), (70, 30))


@pytest.mark.parametrize("then", [(70, 30), (10, 50, 40)])
def test_a_killed_training_ends_with_the_weights_of_an_undisturbed_one(
    killed: Path, whole: list[Any], tmp_path: Path, then: tuple[int, ...]
) -> None:
    shutil.copytree(killed, tmp_path / "killed")
    resumed = trained(tmp_path / "killed", then)
    assert largest(whole, resumed) < 1e-6


def test_the_example_trains_and_tells_where_the_time_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example runs in this process, whose devices are set up.

    tests/cli/test_from_python.py runs a script in a process of its own.
    """
    path = str(ROOT / "scripts" / "example.py")
    monkeypatch.setattr(sys, "argv", [path])
    runpy.run_path(path, run_name="__main__")
    out = capsys.readouterr().out
    assert "Epoch 3/3" in out
    assert out.splitlines()[-1].startswith("GPU:1 Quick 2: compute ")
