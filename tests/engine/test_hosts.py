"""The step over several processes, with TensorFlow's real collectives between them."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpubalance.errors import DeadlinePassed
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.requests import Settings
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import Build, Measure
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker
from tests.engine.rank import BATCHES, CASES, RAGGED
from tests.engine.test_exact import STEPS, TOLERANCE, difference, train_on_one_device
from tests.workers.test_ranks import DEVICES, JOINT

ROOT = Path(__file__).parents[2]


def test_uneven_steps_over_processes_equal_one_device(tensorflow: Any, tmp_path: Path) -> None:
    """Over two; tests/training/test_hosts.py has three."""
    count = len(BATCHES)
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        addresses = tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
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
        assert all(one["counted"] == STEPS for one in found)


HANGS = """
import os, time
import keras, tensorflow as tf

class Hangs(keras.layers.Layer):
    def call(self, x):
        rank = tf.distribute.get_strategy().cluster_resolver.task_id
        def wait(x):
            while rank == 1 and os.path.exists({mark!r}):
                time.sleep(0.05)
            return x
        return x + tf.stop_gradient(tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), x.shape))

def model():
    inputs = keras.Input((8,))
    model = keras.Model(inputs, keras.layers.Dense(4)(Hangs()(inputs)))
    model.compile("sgd", "mse")
    return model
"""


def test_a_device_that_does_not_end_its_compute_is_told(tmp_path: Path) -> None:
    """Its process lives, and so does the one that waits for it in TensorFlow's all-reduce."""
    mark = tmp_path / "hangs"
    (tmp_path / "mine.py").write_text(HANGS.format(mark=str(mark)))
    devices, split = (DEVICES[0], DEVICES[2]), Shares((80, 24))
    with Party(devices, build=Build(settings=Settings(model=f"{tmp_path}/mine.py:model"), joint=JOINT)) as party:
        assert party.ask(lambda worker: list(worker.measure(split)))
        mark.touch()

        def train(worker: Worker) -> object:
            worker.process.send(Measure(split=split, seconds=0, at_least=1))
            return worker.process.receive(5.0, "training")

        with pytest.raises(DeadlinePassed, match=r"^beta:0 said .*; the others wait, as it has not computed"):
            party.ask(train)
