"""Whose memory is full is told by TensorFlow's own texts, as it writes them for GPUs."""

from __future__ import annotations

from typing import Any

from tests.fake_gpu import Fault, Gpu

FAULTS = (
    Fault("cublas", "MatMul", samples=20),
    Fault("cudnn", "Conv2D", samples=28),
    Fault("no_algorithm", "Conv2D", samples=24),
)
GPUS = Gpu(), Gpu(memory_bytes=256 << 20, faults=FAULTS)
# Of 400 MiB on the host the second GPU gets all, and the first one row. What the model's steps
# meet is in the machine's faults. They use no collectives: TensorFlow gives up those on an error.
PROGRAM = """
import json
import tensorflow as tf
from tests.fake_gpu import inside

@tf.function(autograph=False)
def copies(x):
    with tf.device("CPU:0"):
        x = x + 1.0
    with tf.device("GPU:0"):
        first = tf.reduce_sum(x[0])
    with tf.device("GPU:1"):
        return first + tf.reduce_sum(tf.square(x))

def copy():
    with tf.device("CPU:0"):
        copies(tf.zeros((100, 1 << 20)))

session = inside.session(all_reduce="one-device")
failing = (16, 20), (16, 24), (16, 28), copy
print(json.dumps([inside.failure(session, work) for work in failing]))
"""


def test_what_is_said_for_want_of_memory_is_told_of_its_gpu(told: Any) -> None:
    """A copy's text names first where it comes from, the CPU."""
    assert [one["replica"] for one in told] == [1] * 4
    *of_steps, of_copy = (one["message"] for one in told)
    failed = "training small failed on the device: "
    assert of_steps == [
        f"{failed}No Blas support for stream",
        f"{failed}No algorithm worked!  Error messages:",
        f"{failed}No DNN in stream executor.",
    ]
    from_host = "/job:localhost/replica:0/task:0/device:CPU:0;"
    of_recv = "SameWorkerRecvDone unable to allocate output tensor. Key:"
    assert of_copy.startswith(f"{of_recv} {from_host}")
