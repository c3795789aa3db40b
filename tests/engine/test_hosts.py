"""A step over several processes that one of them holds up.

What such a step gives is tested in tests/training/test_hosts.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubalance.errors import DeadlinePassed
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import AllReduce
from gpubalance.settings.settings import Settings
from gpubalance.workers.messages import Build, Measure
from gpubalance.workers.worker import Worker
from gpubalance.workers.worker_group import WorkerGroup
from tests.support.asked import asked
from tests.support.told import refused
from tests.workers.test_ranks import DEVICES, JOINT

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


@pytest.mark.parametrize(
    ("all_reduce", "of_gpus", "of_cpus"),
    [("auto", "NCCL", "RING"), ("nccl", "NCCL", "NCCL"), ("ring", "RING", "RING")],
)
def test_gpus_of_several_hosts_sum_by_nccl_and_cpus_by_the_ring(
    all_reduce: AllReduce, of_gpus: str, of_cpus: str
) -> None:
    """TensorFlow's own AUTO is the ring for both."""
    from gpubalance.engine.hosts import implementation_of

    found = [implementation_of(all_reduce, kind).name for kind in ("GPU", "CPU")]
    assert found == [of_gpus, of_cpus]


@pytest.mark.full  # two processes; workers/test_ranks.py has none
def test_a_device_that_does_not_end_its_compute_is_told(tmp_path: Path) -> None:
    """Its process lives, and so does the one that waits for it in TensorFlow's all-reduce."""
    mark = tmp_path / "hangs"
    (tmp_path / "mine.py").write_text(HANGS.format(mark=str(mark)))
    devices = (DEVICES[0], DEVICES[2])
    split = BatchSplit((80, 24))
    settings = Settings(model=f"{tmp_path}/mine.py:model")
    with WorkerGroup(
        devices, build=Build(settings=settings, joint=JOINT)
    ) as worker_group:
        assert asked(worker_group, lambda worker: list(worker.measure(split)))
        mark.touch()

        def train(worker: Worker) -> object:
            worker.process.send(Measure(split=split, seconds=0, at_least=1))
            return worker.process.receive(5.0, "training")

        waits = r"^beta:0 said .*; the others wait, as it has not computed"
        with refused(waits, DeadlinePassed):
            asked(worker_group, train)
