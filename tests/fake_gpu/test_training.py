"""A training script on two unlike GPUs, of which it names the second first.

It does so after it has used TensorFlow. So TensorFlow has all their memory, and numbers them by
itself. One process does it all.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_gpu import Gpu, operations

pytestmark = pytest.mark.xdist_group("training on GPUs")

MEMORY_BYTES = 60 << 20, 40 << 20
GPUS = Gpu("first", 60 << 20, gflops=0.1), Gpu("second", 40 << 20, gflops=0.1)
SAMPLES = 60_000  # a hundred megabytes, more than either memory
TOO_LARGE = 50_000  # for the first GPU's memory
# It ends well only if arrays that no GPU's memory holds can be trained on.
PROGRAM = f"""
import json, time, warnings
import keras
import numpy as np
import tensorflow as tf
import gpubalance
from gpubalance.engine import memory
from gpubalance.errors import OutOfMemory
from tests.fake_gpu.inside import cnn

tf.ones(3) + 1.0  # before the scope
told = {{}}

def fit(model, samples, **options):
    return model.fit(x[:samples], y[:samples], epochs=2, shuffle=False, verbose=0, **options).history

random = np.random.default_rng(0)
x, y = random.random(({SAMPLES}, 12, 12, 3), np.float32), random.integers(0, 10, {SAMPLES})
split = gpubalance.Split(gpus=[1, 0], batches=[24, 40])
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    with split.scope():
        model = cnn(["accuracy"])
told["warned"] = [str(one.message) for one in warned]
told["names"] = split.replicas.names
told["limits"] = memory.memory_limits_bytes(split.devices, split.replicas.names)
told["began_s"] = time.perf_counter()
logs = fit(model, 320)
told["ended_s"] = time.perf_counter()
with tf.device("/CPU:0"):
    alone = cnn(["accuracy"])
    logs_alone = fit(alone, 320, batch_size=64)
both = zip(model.get_weights(), alone.get_weights())
told["weights_apart"] = max(float(abs(mine - its).max()) for mine, its in both)
told["logs_apart"] = max(abs(np.subtract(logs[name], logs_alone[name])).max() for name in logs_alone)
fit(model, {SAMPLES}, steps_per_epoch=1)
with gpubalance.Split(gpus=[0], batches=[64]).scope():
    alone = cnn()
fit(alone, 320)
told["alone_ended_s"] = time.perf_counter()
with gpubalance.Split(gpus=[1, 0], batches=[24, {TOO_LARGE}]).scope():
    model = cnn()
try:
    fit(model, {SAMPLES})
except OutOfMemory as error:
    told["out_of_memory"] = error.replica, str(error)
print(json.dumps(told))
"""


def test_memory_growth_that_comes_too_late_is_told(told: dict[str, Any]) -> None:
    (text,) = told["warned"]
    before = "TensorFlow was used before the split's devices were set up"
    assert f"{before}, and took all of the GPUs' memory" in text


def test_each_gpu_gets_its_own_batch_whatever_tensorflow_calls_it(
    told: dict[str, Any], machine: dict[str, str]
) -> None:
    """The trace calls them as NVML does."""
    assert told["names"] == ["GPU:1", "GPU:0"]
    assert told["limits"] == [MEMORY_BYTES[1], MEMORY_BYTES[0]]
    began_s, ended_s = told["began_s"], told["ended_s"]
    done = [one for one in operations(machine) if began_s < one.queued_at_s < ended_s]
    copied = {(one.device, one.bytes) for one in done if one.kind == "to_device"}
    for device, batch in ((1, 24), (0, 40)):
        assert (device, batch * 12 * 12 * 3 * 4) in copied


def test_the_host_queues_a_step_while_the_one_before_it_computes(
    told: dict[str, Any], machine: dict[str, str]
) -> None:
    """This is on one GPU, with five steps at once.

    Otherwise Keras reads each step's logs, and with several GPUs their sum is waited for. On a
    busy machine the host is late now and then; if each step waited, it would never be ahead.
    """
    of_first = [one for one in operations(machine) if one.device == 0]
    trained = [one for one in of_first if one.queued_at_s < told["alone_ended_s"]]
    begins = [one for one in trained if one.name.endswith("Conv2D")][-5:]
    ends = [one for one in trained if one.name == "Conv2DBackpropFilter"][-5:]
    pairs = zip(ends[:-1], begins[1:], strict=True)
    assert any(after.queued_at_s < before.ends_s for before, after in pairs)


def test_it_trains_as_one_device_does(told: dict[str, Any]) -> None:
    assert told["weights_apart"] < 1e-6
    assert told["logs_apart"] < 1e-6


def test_an_out_of_memory_is_blamed_on_whoever_has_it(told: dict[str, Any]) -> None:
    replica, text = told["out_of_memory"]
    assert replica == 1
    batch = f"with its batch of {TOO_LARGE}"
    assert text.startswith(f"GPU:0 (first) ran out of memory {batch}")
    in_parts = f"[24, {TOO_LARGE}], micro_batches=[24, {TOO_LARGE // 2}]"
    assert f"gpubalance.Split([1, 0], {in_parts})" in text
