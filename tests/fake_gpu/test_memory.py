"""Whose memory is full is told by TensorFlow's own texts, as it writes them for GPUs."""

from __future__ import annotations

from pathlib import Path

from tests.fake_gpu import Gpu, child, fake_gpus

# 400 MiB on the host, of which the second GPU gets all and the first a row.
COPIES = """
import tensorflow as tf
from gpubalance.engine.failures import explain
from gpubalance.settings.requests import Settings

@tf.function(autograph=False)
def step(x):
    with tf.device("CPU:0"):
        x = x + 1.0
    with tf.device("GPU:0"):
        first = tf.reduce_sum(x[0])
    with tf.device("GPU:1"):
        return first + tf.reduce_sum(tf.square(x))

try:
    with tf.device("CPU:0"):
        step(tf.zeros((100, 1 << 20)))
except tf.errors.ResourceExhaustedError as error:
    found = explain(error, Settings(model="small"), ["GPU:0", "GPU:1"])
    print("SameWorkerRecvDone" in str(error), found.replica)
"""


def test_a_copy_that_does_not_fit_is_a_lack_of_memory_where_it_goes(tmp_path: Path) -> None:
    """The text names first where the copy comes from, the CPU."""
    gpus = fake_gpus(tmp_path, Gpu(), Gpu(memory_bytes=256 << 20))
    assert child(COPIES, gpus).split() == ["True", "1"]
