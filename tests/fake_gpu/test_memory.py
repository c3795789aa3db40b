"""Whose memory is full is told by TensorFlow's own texts, as it writes them for GPUs."""

from __future__ import annotations

from pathlib import Path

from tests.fake_gpu import Fault, Gpu, child, fake_gpus

# Of 400 MiB on the host the second GPU gets all, and the first one row. What the model's steps
# meet is in the machine's faults. They use no collectives: TensorFlow gives up those on an error.
PROGRAM = """
import tensorflow as tf
from gpubalance.engine.failures import explain
from gpubalance.settings.batch_split import BatchSplit
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

def step(*batches):
    how = {"seconds": 0, "at_least": 1, "steps_per_timing": 1, "stamped": False}
    list(session.measure(BatchSplit(batches), **how))

session = inside.session(all_reduce="one-device")
for work in (lambda: step(16, 20), lambda: step(16, 24), lambda: step(16, 28), copy):
    try:
        work()
    except tf.errors.OpError as error:
        found = explain(error, session.settings, ["GPU:0", "GPU:1"])
        print(found.replica, found.fault.message if found.fault else found.message)
"""


def test_what_is_said_for_want_of_memory_is_told_of_its_gpu(tmp_path: Path) -> None:
    """A copy's text names first where it comes from, the CPU."""
    faults = (
        Fault("cublas", "MatMul", samples=20),
        Fault("cudnn", "Conv2D", samples=28),
        Fault("no_algorithm", "Conv2D", samples=24),
    )
    machine = fake_gpus(tmp_path, Gpu(), Gpu(memory_bytes=256 << 20, faults=faults))
    *of_steps, of_copy = child(PROGRAM, machine).splitlines()
    failed = "1 training small failed on the device: "
    assert of_steps == [
        f"{failed}No Blas support for stream",
        f"{failed}No algorithm worked!  Error messages:",
        f"{failed}No DNN in stream executor.",
    ]
    from_host = "/job:localhost/replica:0/task:0/device:CPU:0;"
    of_recv = "1 SameWorkerRecvDone unable to allocate output tensor. Key:"
    assert of_copy.startswith(f"{of_recv} {from_host}")
