"""Whether the noise scale predicts the steps to a loss at other global batches, and what measuring it costs.

Images are synthetic: each class has its own picture under much noise, and one label in ten is wrong, so that there is
something to learn and the gradient's noise stays. Training is on two plain CPU devices; the seconds of a step are
those planned for the 1080 pair.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from gpubalance.devices.profile import simulated_devices
from gpubalance.numbers.stats import median
from gpubalance.planning.allocate import allocate
from gpubalance.planning.model import Line
from gpubalance.planning.problem import Load, Problem
from gpubalance.training.split import Split
from tests.bench.engine import BATCHES, small
from tests.bench.ratio import in_processes, in_turns
from tests.bench.training import SplitFit
from tests.bench.wanted import Wanted, judged
from tests.cli.program import ROOT

_PAIR = ROOT / "configs" / "gtx1080ti-gtx1080.toml"
_GLOBAL_BATCHES = (32, 64, 128, 256)
_TUNED_AT = 64
_SEEDS = 3
_MOST_STEPS = 1500
_SMOOTHED = 0.95  # the decay of the running mean of the loss that must reach the goal
_NOISE = 1.2
_PAIRS = 6
_MOST_PROCESSES = 24


def main() -> Iterator[str]:
    cost = judged(in_processes("tests.bench.goodput"), Wanted(0.99), _MOST_PROCESSES)
    yield f"training with split.monitor(noise=True) over split.monitor(): {cost}, in processes"
    for name, task in _TASKS.items():
        yield from _learned(name, task)


def convnet() -> Any:
    """The model of Keras' example for MNIST, without its dropout."""
    import keras
    from keras import layers

    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )


def resnet() -> Any:
    """Two residual blocks for images of CIFAR's shape, with group normalisation, which is the same for every split."""
    import keras
    from keras import layers

    inputs = layers.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, strides=2, padding="same")(inputs)
    for filters, strides in ((16, 1), (32, 2)):
        beside = layers.Conv2D(filters, 1, strides=strides)(x)
        x = layers.Conv2D(filters, 3, strides=strides, padding="same")(x)
        x = layers.Activation("relu")(layers.GroupNormalization(8)(x))
        x = layers.GroupNormalization(8)(layers.Conv2D(filters, 3, padding="same")(x))
        x = layers.Activation("relu")(layers.Add()([x, beside]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


class _Task(NamedTuple):
    """A model, its images' shape, the loss to reach, and a learning rate with the batch that it suits."""

    make: Callable[[], Any]
    shape: tuple[int, ...]
    goal: float
    learning_rate: float


_TASKS = {
    "MNIST convnet": _Task(convnet, (28, 28, 1), 1.7, 0.1),
    "small ResNet": _Task(resnet, (32, 32, 3), 2.0, 0.3),
}


def _learned(name: str, task: _Task) -> Iterator[str]:
    """A line for each global batch: the steps it took, and what φ predicts from the steps at the tuned batch."""
    scales = [_train(task, _TUNED_AT, seed, None) for seed in range(_SEEDS)]
    scale = median([one for _, one in scales if one is not None])
    took = {_TUNED_AT: median([steps for steps, _ in scales])}
    for total in _GLOBAL_BATCHES:
        if total != _TUNED_AT:
            took[total] = median([_train(task, total, seed, scale)[0] for seed in range(_SEEDS)])
    yield f"{name}: noise scale {scale:.0f}, loss {task.goal:g}, median of {_SEEDS} seeds, tuned at {_TUNED_AT}"
    for total in _GLOBAL_BATCHES:
        step_s = _step_s(total)
        predicted = took[_TUNED_AT] * (1 + scale / total) / (1 + scale / _TUNED_AT)
        yield (
            f"{name}: global batch {total:4}: {took[total]:5.0f} steps, predicted {predicted:5.0f} "
            f"({took[total] / predicted:.2f} of that); on the pair {took[total] * step_s:5.1f} s, "
            f"predicted {predicted * step_s:5.1f} s"
        )


def _step_s(total: int) -> float:
    """The step time of the pair's best split, by its profile."""
    devices, joint = simulated_devices(str(_PAIR))
    loads = tuple(Load(Line(d.profile.alpha_s, d.profile.beta_s, 0.0), total) for d in devices if d.profile)
    return allocate(Problem(loads, sync_s=joint.sync_s, global_batch=total, multiple=8)).step_time_s


def _train(task: _Task, total: int, seed: int, scale: float | None) -> tuple[float, float | None]:
    """The steps until the mean loss reaches the goal, and the noise scale over them."""
    import keras

    keras.utils.set_random_seed(seed)
    first = round(0.6 * total)
    split = Split(batches=[first, total - first], simulate=2)
    rate = task.learning_rate
    if scale is not None:
        rate *= (1 + scale / _TUNED_AT) / (1 + scale / total)
    with split.scope():
        model = task.make()
        model.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy")
    monitor, reached = split.monitor(every=4, noise=True), _Reached(task.goal)
    images = _images(task.shape, total, seed)
    split.fit(model, images, steps_per_epoch=_MOST_STEPS, verbose=0, callbacks=[monitor, reached])
    return reached.steps, monitor.epochs[0].noise_scale


def _images(shape: tuple[int, ...], total: int, seed: int) -> Any:
    import tensorflow as tf

    pictures = np.random.default_rng(0).standard_normal((10, *shape)).astype("float32")
    draw = np.random.default_rng(seed)

    def batches() -> Iterator[Any]:
        while True:
            labels = draw.integers(0, 10, total)
            images = pictures[labels] * 0.3 + _NOISE * draw.standard_normal((total, *shape), dtype="float32")
            wrong = draw.random(total) < 0.1
            yield images, np.where(wrong, draw.integers(0, 10, total), labels)

    spec = tf.TensorSpec((None, *shape), tf.float32), tf.TensorSpec((None,), tf.int64)
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def _Reached(goal: float) -> Any:
    import keras

    class Reached(keras.callbacks.Callback):  # type: ignore[misc]
        steps = math.inf
        _before, _mean = 0.0, math.nan

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Ends training at the goal. Keras passes the mean of all losses so far."""
            loss = (batch + 1) * logs["loss"] - batch * self._before
            self._before = logs["loss"]
            self._mean = loss if batch == 0 else _SMOOTHED * self._mean + (1 - _SMOOTHED) * loss
            if self._mean <= goal:
                self.steps = batch + 1
                self.model.stop_training = True
                raise StopIteration  # Keras does not look at stop_training within an epoch

    return Reached()


class Monitored(SplitFit):
    """Training with every step stamped, with the noise measured or not."""

    def __init__(self, split: Split, *, noise: bool) -> None:
        super().__init__(split, small)
        self._noise = noise

    def fit(self, **options: Any) -> Any:
        """Trains."""
        callbacks = [self._split.monitor(every=1, noise=self._noise), *options.pop("callbacks")]
        return super().fit(callbacks=callbacks, **options)


def _cost() -> float:
    """Throughput with the noise measured over that without, for the usual case of one stamped step in many.

    Here every step is stamped, or the machine's own noise would hide the cost of the few.
    """
    split = Split(batches=[batch // 10 for batch in BATCHES], simulate=2)
    with_noise, without = Monitored(split, noise=True), Monitored(split, noise=False)
    of_stamped = median([*islice(in_turns(with_noise.throughput, without.throughput), _PAIRS)])
    every: int = signature(Split.monitor).parameters["every"].default
    return 1 / (1 + (1 / of_stamped - 1) / every)


if __name__ == "__main__":
    sys.stdout, out = sys.stderr, sys.stdout  # keeps what the monitor prints off stdout
    print(_cost(), file=out)
