"""Throughput of the product's own step, in turns with a bare MirroredStrategy loop and with Keras' `fit`.

Each ratio is of two loops in turns in one process. Two equal models in one process differ by some per cent here, by
where their memory lies, for as long as it lives. So there are several processes, and their medians count.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from gpubalance.numbers.stats import median
from tests.bench.ratio import in_processes, in_turns
from tests.bench.wanted import Wanted, judged

BATCHES = (1680, 1120)  # steps of some 30 ms here; a GPU's are even longer
EVEN = (sum(BATCHES) // 2,) * 2
_WINDOW_S = 0.6
_PAIRS = 8
_MOST_PROCESSES = 24
_CPUS = ("CPU:0", "CPU:1")


def main() -> Iterator[str]:
    for against, batches, least in (("a bare MirroredStrategy loop", BATCHES, 0.98), ("Keras' fit", EVEN, 1.0)):
        figure = judged(in_processes("tests.bench.engine", against), Wanted(least), _MOST_PROCESSES)
        yield f"our step over {against}, both {batches[0]}/{batches[1]} on plain CPU devices: {figure}, in processes"
    from tests.bench import told  # which measures by these loops

    yield from told.main()


def _ratio(against: str) -> float:
    """This process's ratio: the median over pairs of windows."""
    ours = Ours()
    other, batches = (KerasFit(sum(EVEN)), EVEN) if "fit" in against else (BareLoop(BATCHES), BATCHES)
    return median([*islice(in_turns(lambda: ours.throughput(batches), other.throughput), _PAIRS)])


class Ours:
    """The loop that `gpubalance run` measures, without its own process."""

    def __init__(self, simulate: str = "2", data: str | None = None, model: str = "small") -> None:
        from gpubalance.devices.profile import simulated_devices
        from gpubalance.engine.session import Session
        from gpubalance.settings.requests import Settings

        devices, joint = simulated_devices(simulate)
        self._pipeline = data is not None
        self._session = Session(devices, Settings(model=model, data=data), joint, seed=0)

    def throughput(self, batches: Sequence[int], steps: int = 12, seconds: float = _WINDOW_S) -> float:
        from gpubalance.settings.shares import Shares

        split = Shares(tuple(batches))
        measure = partial(self._session.measure, steps_per_timing=steps, stamped=False, pipeline=self._pipeline)
        if self._pipeline:  # it kept filling during the other's turn: what is ready would count too much
            list(measure(split, seconds=0.0, at_least=1))
        samples = list(measure(split, seconds=seconds, at_least=2))
        return sum(batches) * sum(s.steps for s in samples) / sum(s.seconds for s in samples)


def small() -> Any:
    """The built-in model `small`."""
    from gpubalance.engine.models import small_model

    return small_model()


class BareLoop:
    """The loop of TensorFlow's guide to custom training, with its own batch for each replica."""

    def __init__(self, batches: Sequence[int], devices: Sequence[str] = _CPUS, make: Callable[[], Any] = small) -> None:
        """`make` makes a classifier of 28×28×1 images."""
        import keras
        import tensorflow as tf

        strategy = tf.distribute.MirroredStrategy(devices)
        self._global_batch = sum(batches)
        with strategy.scope():
            model = make()
            optimizer = getattr(model, "optimizer", None) or keras.optimizers.Adam()
            optimizer.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(reduction=None)

        def train(values: Any) -> Any:
            inputs, labels = values
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(loss_of(labels, model(inputs, training=True))) / self._global_batch
            grads = tape.gradient(loss, [v.value for v in model.trainable_variables])
            optimizer.apply(grads, model.trainable_variables)
            return loss

        def share(context: Any) -> Any:
            count = batches[context.replica_id_in_sync_group]
            return tf.random.uniform((count, 28, 28, 1)), tf.random.uniform((count,), 0, 10, tf.int32)

        self._values = strategy.experimental_distribute_values_from_function(share)

        @tf.function(autograph=False)
        def step(values: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(train, args=(values,)), axis=None)

        self._step = step

    def throughput(self) -> float:
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < _WINDOW_S or steps < 2:
            loss = self._step(self._values)
            steps += 1
        float(loss)
        return self._global_batch * steps / (time.perf_counter() - began)


class KerasFit:
    """Keras' own training at an even split, from a pipeline that repeats one batch."""

    def __init__(self, global_batch: int, devices: Sequence[str] = _CPUS, make: Callable[[], Any] = small) -> None:
        """`make` makes a classifier of 28×28×1 images."""
        import keras
        import tensorflow as tf

        self._global_batch = global_batch
        self._devices = devices
        with self.scope():
            self._model = make()
            if not self._model.compiled:
                optimizer = getattr(self._model, "optimizer", None) or keras.optimizers.Adam()
                self._model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)
        values = tf.random.uniform((global_batch, 28, 28, 1)), tf.random.uniform((global_batch,), 0, 10, tf.int32)
        self.data = tf.data.Dataset.from_tensors(values).repeat()
        self._steps = 20

    def scope(self) -> Any:
        """The scope in which the model is built."""
        import tensorflow as tf

        return tf.distribute.MirroredStrategy(self._devices).scope()

    def fit(self, **options: Any) -> Any:
        """Trains."""
        return self._model.fit(self.data, **options)

    def throughput(self) -> float:
        """Samples per second of the steps after the fit's first three, which set it up."""
        import keras

        ends: list[float] = []
        times = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())  # noqa: ARG005  (Keras names them)
        )
        self.fit(steps_per_epoch=self._steps + 3, epochs=1, verbose=0, callbacks=[times])
        seconds = ends[-1] - ends[2]
        rate = self._global_batch * self._steps / seconds
        self._steps = max(10, round(_WINDOW_S * self._steps / seconds))
        return rate


if __name__ == "__main__":
    print(_ratio(sys.argv[1]))
