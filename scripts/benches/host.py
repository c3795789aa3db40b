"""What the host does for a small step: processor time, which says the same on a busy machine.

On GPUs such a step is over before the host has begun the next one, so this is how long it takes.
Each ratio is of a fit with a split of two plain CPU devices and of Keras' own on one, in a process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from gpubalance.training.split import Split
from scripts.benches.turns import in_processes
from scripts.benches.wanted import Wanted, judged

_HERE = "scripts.benches.host"
_BATCHES = (5, 3)
_STEPS = 400
_TURNS = 3
_CLOCKS: dict[str, Callable[[], float]] = {
    "main thread": time.thread_time,
    "all threads": time.process_time,
}
_WANTED = {
    # With arguments bound and cast anew it was 0.81 (AMD EPYC, 2026-11-28).
    "main thread": Wanted(maximum=0.75),
    # Two devices compute and sum where one computes.
    "all threads": Wanted(maximum=2.5),
}


def main() -> Iterator[str]:
    """A line for each clock."""
    for name, wanted in _WANTED.items():
        found = judged(in_processes(_HERE, name), wanted, 12)
        yield f"a small step of Split.fit over Keras' fit, processor time of {name}: {found}"


def _ratio(clock: Callable[[], float]) -> float:
    """The split's time over that of one device."""
    split = Split(simulate=2, batches=_BATCHES)
    with split.scope():
        ours = _model()
    models = ours, _model()
    seconds = [0.0, 0.0]
    for turn in range(1 + _TURNS):
        for place, model in enumerate(models):
            took_s = _seconds(model, clock)
            if turn:  # the first one traces
                seconds[place] += took_s
    return seconds[0] / seconds[1]


def _seconds(model: Any, clock: Callable[[], float]) -> float:
    import tensorflow as tf

    samples = sum(_BATCHES)
    batch = tf.random.uniform((samples, 16)), tf.zeros((samples,), tf.int32)
    data = tf.data.Dataset.from_tensors(batch).repeat()
    began = clock()
    model.fit(data, steps_per_epoch=_STEPS, shuffle=False, verbose=0)
    return clock() - began


def _model() -> Any:
    import keras

    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dense(4, "softmax")]
    model = keras.Sequential([keras.Input((16,)), *layers])
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.SGD(1e-3), loss, jit_compile=False)
    return model


if __name__ == "__main__":
    print(_ratio(_CLOCKS[sys.argv[1]]))
