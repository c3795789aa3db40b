"""What a step copies between the host and GPUs, and when."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.cli.program import gpubalance, typed
from tests.fake_gpu import Gpu, child, operations

pytestmark = pytest.mark.xdist_group("step on GPUs")

ALONE = ("--windows", "1", "--duration", "0.2", "--baseline", "none", "--json")
# So slow that the host has all the time that it needs, unless it is busy once
GPUS = Gpu(kernel_ms=2.0), Gpu(kernel_ms=2.0)
_SAMPLES, _STEPS, _FEATURES = 64, 10, (12, 12, 3)
_BATCHES = 40, 24
# When each step of our training began, and then each of Keras' own. This small CNN has no metric
# beside its loss, as Keras' accuracy goes through the host by itself.
PROGRAM = f"""
import json, time
import keras
import numpy as np
import tensorflow as tf
from gpubalance import Split
from tests.fake_gpu.inside import cnn

class Times(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.begun = []
    def on_train_batch_begin(self, *_, **__):
        self.begun.append(time.perf_counter())
    def on_train_batch_end(self, *_, **__):
        pass

x, y = np.ones(({_SAMPLES * _STEPS}, *{_FEATURES}), np.float32), np.zeros({_SAMPLES * _STEPS}, np.int64)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch({_SAMPLES})

def begun(scope, fit):
    with scope:
        model = cnn()
    times = Times()
    fit(model, data, verbose=0, callbacks=[times])
    return times.begun

split = Split(gpus=[0, 1], batches={_BATCHES})
ours = begun(split.scope(), split.fit)
keras_own = begun(tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"]).scope(), keras.Model.fit)
print(json.dumps([ours, keras_own]))
"""


def _copies(variables: Mapping[str, str], begun: Sequence[float]) -> Counter[str]:
    """The copies of a step by their kind, from the begin of the fifth step to that of the last."""
    first, last = begun[4], begun[-1]
    done = [one for one in operations(variables) if first <= one.queued_at_s < last]
    counts = Counter(operation.kind for operation in done)
    steps = len(begun) - 5
    kinds = ("to_device", "to_host", "between")
    return Counter({kind: round(counts[kind] / steps) for kind in kinds})


def test_it_copies_no_more(machine: dict[str, str], told: list[list[float]]) -> None:
    ours, keras_own = (_copies(machine, steps) for steps in told)
    assert all(ours[kind] <= keras_own[kind] for kind in keras_own)
    assert ours["to_host"] == 1  # the logs, which the callback asked for


def test_the_next_batch_is_there_before_this_ones_gradients(
    machine: dict[str, str], told: list[list[float]]
) -> None:
    """The next batch is there before the step on this one has its gradients.

    On a busy machine a batch is late now and then.

    If each one waited for the step before it, none would be early.
    """
    keras_begins_s = told[1][0]
    done = [one for one in operations(machine) if one.queued_at_s < keras_begins_s]
    for device, share in enumerate(_BATCHES):
        own = [one for one in done if one.device == device]
        size = share * math.prod(_FEATURES) * 4
        copies = [one for one in own if (one.kind, one.bytes) == ("to_device", size)]
        are_there = [one.ends_s for one in copies]
        # These kernels are the last ones of a step.
        last = [one for one in own if one.name == "Conv2DBackpropFilter"]
        have_gradients = [one.ends_s for one in last]
        # Each pair has the batch of one of the last five steps, and the end of the step before.
        pairs = zip(are_there[-5:], have_gradients[-6:-1], strict=True)
        assert any(is_there < has_gradients for is_there, has_gradients in pairs)


_WIDE = """
import keras

def build():
    inner = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(4)]
    model = keras.Sequential([keras.Input((32, 32, 16)), *inner])
    model.compile("sgd", "mse", jit_compile=False)
    return model
"""
_FITS = """
import json
import tensorflow as tf
from gpubalance import Split

split = Split(gpus=[0, 1], batches=[40, 24])
with split.scope():
    model = build()
data = tf.data.Dataset.range(640).map(lambda _: (tf.zeros((32, 32, 16)), tf.zeros((4,)))).batch(64)
split.fit(model, data, verbose=0)
print(json.dumps([tf.config.experimental.get_memory_info(name)["peak"] for name in ("GPU:0", "GPU:1")]))
"""


def test_it_takes_the_measured_memory(two_gpus: dict[str, str], tmp_path: Path) -> None:
    """Of a model whose inputs are most of what it needs."""
    file = tmp_path / "wide.py"
    file.write_text(_WIDE)
    run = (*typed("run --gpus 0,1 --batches 40,24 --model"), f"{file}:build", *ALONE)
    measured = json.loads(gpubalance(*run, code=0, environment=two_gpus).stdout)
    trained = json.loads(child(_WIDE + _FITS, two_gpus))
    for replica, peak in zip(measured["replicas"], trained, strict=True):
        assert peak <= 1.01 * replica["memory_peak_bytes"]
