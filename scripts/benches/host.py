"""What the host does for a small step: processor time, which says the same on a busy machine.

On GPUs such a step is over before the host has begun the next one, so this is how long it takes.
Each ratio is of a fit with a split of two plain CPU devices and of Keras' own on one, in a process.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gpubalance.training.split import Split
from scripts.benches.turns import in_processes
from scripts.benches.wanted import Wanted, judged

_HERE = "scripts.benches.host"
_BATCHES = (5, 3)
_STEPS = 400
_TURNS = 3
_MORE_SUMS = 16
_GRADIENTS = 340  # numbers, those of the model
_CLOCKS: dict[str, Callable[[], float]] = {
    "main thread": time.thread_time,
    "all threads": time.process_time,
}
_WANTED = {
    # 0.81 on AMD EPYC; 0.86 when each device took its keys by itself (2026-11-30).
    "main thread": Wanted(maximum=0.84),
    # Two devices compute and sum where one computes.
    "all threads": Wanted(maximum=2.5),
}


def main() -> Iterator[str]:
    """A line for each clock."""
    for name, wanted in _WANTED.items():
        found = judged(in_processes(_HERE, name), wanted, 12)
        yield f"a small step of Split.fit over Keras' fit, processor time of {name}: {found}"
    for name, clock in _CLOCKS.items():
        ours, keras_own = map(statistics.median, _turns(clock))
        yield f"{name}, in this process: {ours:.0f} µs a step, Keras' fit {keras_own:.0f} µs"
    sum_us = _sum_us()
    yield f"all threads, one more sum over both devices in a function: {sum_us:.0f} µs"
    one_us, two_us = _graph_us(1), _graph_us(2)
    yield (
        f"all threads, the bare graph of such a step: {one_us:.0f} µs on one device, "
        f"{two_us:.0f} µs on both; with Keras' loop and a sum "
        f"{keras_own - one_us + two_us + sum_us:.0f} µs"
    )


def _ratio(clock: Callable[[], float]) -> float:
    """The split's time over that of one device."""
    ours, keras_own = _turns(clock)
    return sum(ours) / sum(keras_own)


def _turns(clock: Callable[[], float]) -> tuple[list[float], list[float]]:
    """The microseconds of a step with a split, and on one device, in each turn."""
    split = Split(simulate=2, batches=_BATCHES)
    with split.scope():
        ours = _model()
    turns: tuple[list[float], list[float]] = [], []
    models = ours, _model()
    for turn in range(1 + _TURNS):
        for model, took_us in zip(models, turns, strict=True):
            took_s = _seconds(model, clock)
            if turn:  # the first one traces
                took_us.append(1e6 * took_s / _STEPS)
    return turns


def _seconds(model: Any, clock: Callable[[], float]) -> float:
    import tensorflow as tf

    samples = sum(_BATCHES)
    batch = tf.random.uniform((samples, 16)), tf.zeros((samples,), tf.int32)
    data = tf.data.Dataset.from_tensors(batch).repeat()
    began = clock()
    model.fit(data, steps_per_epoch=_STEPS, shuffle=False, verbose=0)
    return clock() - began


def _sum_us() -> float:
    """The processor time that a sum adds to a function that has others, in microseconds."""
    from gpubalance.engine.replicas import Replicas, sum_over

    replicas = Replicas(None, ("CPU:0", "CPU:1"), ())
    taken_us = []
    for sums in (1, 1 + _MORE_SUMS):
        taken_us.append(
            _processor_us(partial(sum_over(replicas, (0, 1), sums), _GRADIENTS))
        )
    one_us, all_us = taken_us
    return (all_us - one_us) / _MORE_SUMS


def _processor_us(call: Callable[[], Any]) -> float:
    """The processor time of all threads for a call that returns tensors, in microseconds."""
    turns_us = []
    for turn in range(1 + _TURNS):
        began_s = time.process_time()
        for _ in range(_STEPS):
            for tensor in call():
                tensor.numpy()  # waits for the device
        if turn:  # the first one traces
            turns_us.append(1e6 * (time.process_time() - began_s) / _STEPS)
    return statistics.median(turns_us)


def _graph_us(devices: int) -> float:
    """The processor time of a function that trains a model on each device, without any sum.

    It is written by hand, with neither metrics nor states, and called on tensors that are there.
    """
    import keras
    import tensorflow as tf

    models, batches = [], []
    for device in range(devices):
        with tf.device(f"CPU:{device}"):
            models.append(_model())
            batches.append((tf.random.uniform((4, 16)), tf.zeros((4,), tf.int32)))

    def train() -> list[Any]:
        losses = []
        for device, (model, (x, y)) in enumerate(zip(models, batches, strict=True)):
            with tf.device(f"CPU:{device}"):
                with tf.GradientTape() as tape:
                    outputs = model(x, training=True)
                    sample_losses = keras.losses.sparse_categorical_crossentropy(
                        y, outputs
                    )
                    loss = tf.reduce_mean(sample_losses)
                gradients = tape.gradient(loss, model.trainable_weights)
                for variable, gradient in zip(
                    model.trainable_weights, gradients, strict=True
                ):
                    variable.value.assign_sub(1e-3 * gradient)
                losses.append(loss)
        return losses

    step = tf.function(train, autograph=False).get_concrete_function()
    return _processor_us(step)


def _model() -> Any:
    import keras

    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dense(4, "softmax")]
    model = keras.Sequential([keras.Input((16,)), *layers])
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.SGD(1e-3), loss, jit_compile=False)
    return model


if __name__ == "__main__":
    print(_ratio(_CLOCKS[sys.argv[1]]))
