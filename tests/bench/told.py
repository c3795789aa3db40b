"""What `run` tells of models with steps of their own over what `Split.fit` trains: samples/s, and peak memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from gpubalance.numbers.stats import median
from gpubalance.training.split import Split
from tests.bench.engine import Ours
from tests.bench.ratio import in_processes, in_turns
from tests.bench.training import SplitFit
from tests.bench.wanted import Within, judged
from tests.training.steps import stepping

_BATCHES = (1680, 1120)
_WANTED = Within(0.95, 1.05)
_PAIRS = 4
_MOST = 12
_STEPS = 6  # after which memory has had its peak


def layers() -> list[Any]:
    """Layers whose steps take some 100 ms here, so that Keras' own work for a step counts as little as on a GPU."""
    from keras import Input
    from keras.layers import Dense, Flatten

    return [Input((28, 28, 1)), Flatten(), Dense(256, "relu"), Dense(128, "relu"), Dense(10, "softmax")]


def many_metrics() -> Any:
    """A model with nine metrics."""
    import keras

    model = keras.Sequential(layers())
    more = [keras.metrics.SparseTopKCategoricalAccuracy(k, name=f"top_{k}") for k in range(2, 9)]
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy", *more, "sparse_categorical_accuracy"])
    return model


def perceptual() -> Any:
    """A model with a loss that runs another one."""
    import keras

    eye = keras.Sequential([keras.Input((10,)), keras.layers.Dense(512, "tanh"), keras.layers.Dense(512, "tanh")])
    model = keras.Sequential(layers())
    one_hot = keras.ops.one_hot
    model.compile("adam", lambda y, p: keras.ops.mean((eye(one_hot(y[:, 0], 10)) - eye(p)) ** 2, axis=-1))
    return model


MODELS: dict[str, Callable[[], Any]] = {
    **{kind: stepping(kind, layers) for kind in ("distillation", "gradient penalty", "four views", "last layer")},
    "nine metrics": many_metrics,
    "a perceptual loss": perceptual,
}


def __getattr__(name: str) -> Any:
    """A model as `--model` names it."""
    if not name.startswith("model_"):
        raise AttributeError(name)
    return list(MODELS.values())[int(name.removeprefix("model_"))]


def data() -> Any:
    """A pipeline that repeats one batch."""
    import tensorflow as tf

    count = sum(_BATCHES)
    values = tf.random.uniform((count, 28, 28, 1)), tf.random.uniform((count, 1), 0, 10, tf.int32)
    return tf.data.Dataset.from_tensors(values).repeat()


def main() -> Iterator[str]:
    for name in MODELS:
        figure = judged(in_processes("tests.bench.told", name), _WANTED, _MOST)
        peaks = zip(*(in_processes("tests.bench.told", name, what) for what in ("told", "trained")), strict=True)
        memory = judged((told / trained for told, trained in peaks), _WANTED, _MOST)
        yield f"told over trained, {name}, {'/'.join(map(str, _BATCHES))}: samples/s {figure}; peak memory {memory}"


def _told(name: str) -> Ours:
    return Ours(data="tests.bench.told:data", model=f"tests.bench.told:model_{list(MODELS).index(name)}")


def _trained(name: str) -> SplitFit:
    fit = SplitFit(Split(batches=_BATCHES, simulate=2), MODELS[name])  # sets the devices up
    fit.data = data()
    return fit


def _ratio(name: str) -> float:
    fit = _trained(name)
    told = _told(name)
    return median([*islice(in_turns(lambda: told.throughput(_BATCHES, 2), fit.throughput), _PAIRS)])


def _peak_bytes(name: str, what: str) -> float:
    """The peak of TensorFlow's memory on the host, in which all plain CPU devices are."""
    if what == "told":
        _told(name).throughput(_BATCHES, _STEPS, seconds=0.0)
    else:
        _trained(name).fit(steps_per_epoch=_STEPS, verbose=0)
    from gpubalance.engine.runtime import memory_bytes

    return float(memory_bytes("CPU:0", "peak") or 0)


if __name__ == "__main__":
    print(_peak_bytes(*sys.argv[1:]) if sys.argv[2:] else _ratio(sys.argv[1]))
