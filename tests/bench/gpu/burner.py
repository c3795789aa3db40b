"""Other work beside a measurement: a second process that computes on a device until it is ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from gpubalance.settings.device import Device
from gpubalance.workers.environment import worker_environment
from tests.bench.gpu.parts import card_of

# A rehearsal only shows that it begins and ends.
_ON_A_CPU = "import time; print(flush=True); time.sleep(1000)"
_ON_A_GPU = """
import tensorflow as tf
assert tf.config.list_physical_devices("GPU")
a = tf.random.normal((4096, 4096)) / 64
float(tf.reduce_sum(a @ a))
print(flush=True)
while True:
    float(tf.reduce_sum(a @ a @ a @ a))
"""


@contextlib.contextmanager
def busy(device: Device) -> Iterator[None]:
    """Keeps a device busy while the block runs; for a part of a card, the whole card."""
    variables = worker_environment([device.model_copy(update={"uuid": card_of(device.uuid)})])
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_A_CPU if device.simulated else _ON_A_GPU],
        env={n: value for n, value in {**os.environ, **variables}.items() if value is not None},
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the second process did not begin"
        yield
    finally:
        process.kill()
        process.wait()
