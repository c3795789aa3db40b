"""Whose memory is full is told by TensorFlow's own texts, as it writes them for GPUs."""

from __future__ import annotations

from pathlib import Path

from tests.fake_gpu import Fault, Gpu, child, fake_gpus

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


# Without collectives, which TensorFlow gives up after an error.
FAILS = """
from gpubalance.engine.failures import explain
from gpubalance.settings.shares import Shares
from tests.fake_gpu import inside
session = inside.session(all_reduce="one-device")
for batches in ((16, 20), (16, 24), (16, 28)):
    try:
        inside.steps(session, Shares(batches), 1, stamped=False)
    except Exception as error:
        found = explain(error, session.settings, ["GPU:0", "GPU:1"])
        print(found.replica, found.fault.message)
"""


def test_what_a_library_says_for_want_of_memory_is_told_of_its_gpu(tmp_path: Path) -> None:
    faults = (
        Fault("cublas", "MatMul", samples=20),
        Fault("cudnn", "Conv2D", samples=28),
        Fault("no_algorithm", "Conv2D", samples=24),
    )
    told = child(FAILS, fake_gpus(tmp_path, Gpu(), Gpu(faults=faults)))
    failed = "1 training small failed on the device: "
    assert told.splitlines() == [
        f"{failed}No Blas support for stream",
        f"{failed}No algorithm worked!  Error messages:",
        f"{failed}No DNN in stream executor.",
    ]
