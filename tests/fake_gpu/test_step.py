"""What a step copies between the host and GPUs, and when."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from tests.fake_gpu import Operation, child, operations

_SAMPLES, _STEPS, _FEATURES = 64, 10, (12, 12, 3)
_BATCHES = 40, 24
# A small CNN without a metric beside its loss, as Keras' accuracy goes through the host by itself.
_TRAINED = f"""
import json, sys, time
import keras
import numpy as np
import tensorflow as tf
from gpubalance import Split

class Times(keras.callbacks.Callback):
    begun, ended = [], []
    def on_train_batch_begin(self, *_, **__):
        self.begun.append(time.perf_counter())
    def on_train_batch_end(self, *_, **__):
        self.ended.append(time.perf_counter())

split = Split(gpus=[0, 1], batches={_BATCHES})
ours = sys.argv[1] == "ours"
with split.scope() if ours else tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"]).scope():
    inner = [keras.layers.Conv2D(8, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input({_FEATURES}), *inner])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
x, y = np.ones(({_SAMPLES * _STEPS}, *{_FEATURES}), np.float32), np.zeros({_SAMPLES * _STEPS}, np.int64)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch({_SAMPLES})
(split.fit if ours else keras.Model.fit)(model, data, verbose=0, callbacks=[Times()])
print(json.dumps([Times.begun, Times.ended]))
"""


def _steady(variables: Mapping[str, str], whose: str) -> tuple[list[Operation], int]:
    """What GPUs did from the begin of a step to that of another one, and how many steps lie between."""
    begun, _ = json.loads(child(_TRAINED, variables, whose))
    done = operations(variables)
    first, last = begun[4], begun[-1]
    return [one for one in done if first <= one.queued_at_s < last], len(begun) - 5


def _copies(variables: Mapping[str, str], whose: str) -> Counter[str]:
    """The copies of a step by their kind."""
    done, steps = _steady(variables, whose)
    counts = Counter(one.kind for one in done)
    return Counter({kind: round(counts[kind] / steps) for kind in ("to_device", "to_host", "between")})


def test_a_step_copies_no_more_than_keras_own(two_gpus: dict[str, str]) -> None:
    ours, keras_own = (_copies(two_gpus, whose) for whose in ("ours", "Keras'"))
    print(ours, keras_own)
    assert all(ours[kind] <= keras_own[kind] for kind in keras_own)
    assert ours["to_host"] == 1  # the logs, which the callback asked for
