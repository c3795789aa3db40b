"""A step over several processes that one of them holds up.

What such a step gives is tested in tests/training/test_hosts.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import DeadlinePassed
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import AllReduce
from gpubalance.settings.settings import Settings
from gpubalance.workers.messages import Build, Measure, SumsTimed, TimeSums
from gpubalance.workers.worker import Worker
from gpubalance.workers.worker_group import WorkerGroup
from tests.support.asked import asked
from tests.support.told import refused

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


BY: dict[AllReduce, list[str]] = {"nccl": ["NCCL"] * 2, "ring": ["RING"] * 2}
BY["auto"] = ["NCCL", "RING"]


@pytest.mark.parametrize("all_reduce", BY)
def test_gpus_of_several_hosts_sum_by_nccl_and_cpus_by_the_ring(
    all_reduce: AllReduce,
) -> None:
    """TensorFlow's own AUTO is the ring for both."""
    from gpubalance.engine.runtime import implementation_of

    found = [implementation_of(all_reduce, kind).name for kind in ("GPU", "CPU")]
    assert found == BY[all_reduce]


@pytest.mark.full  # three processes; workers/test_ranks.py has none
def test_processes_sum_over_some_and_one_that_hangs_is_told(tmp_path: Path) -> None:
    """The first one is in only one of the groups that sum, and all train together afterwards.

    Then one does not end its compute. Its process lives, and so do those that wait for it in
    TensorFlow's all-reduce.
    """
    mark = tmp_path / "hangs"
    (tmp_path / "mine.py").write_text(HANGS.format(mark=str(mark)))
    devices, joint = simulated_devices(1, ("alpha", "beta", "gamma"))
    build = Build(settings=Settings(model=f"{tmp_path}/mine.py:model"), joint=joint)
    request = TimeSums(groups=((1, 2), (0, 1, 2), (1, 2)), nbytes=1000)
    split = BatchSplit((4, 4, 4))

    def train(worker: Worker) -> object:
        worker.process.send(Measure(split=split, seconds=0, at_least=1))
        return worker.process.receive(5.0, "training")

    with WorkerGroup(devices, build=build) as worker_group:
        timed = asked(worker_group, lambda worker: worker.ask(request, SumsTimed))
        assert len(timed.seconds) == 3
        assert min(timed.seconds) > 0
        timing, _ = asked(worker_group, lambda worker: list(worker.measure(split)))
        assert isinstance(timing, Timing)
        assert timing.loss_is_finite
        mark.touch()
        waits = r"^beta:0 sent .*; the others wait, because it has not computed"
        with refused(waits, DeadlinePassed):
            asked(worker_group, train)
