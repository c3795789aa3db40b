"""The loops whose throughputs are compared: the product's own, TensorFlow's and Keras'."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import Precision
from gpubalance.settings.device import Device
from gpubalance.training.split import Split

Make = Callable[[], Any]
WINDOW_S = 0.6
_CPUS = ("CPU:0", "CPU:1")
_SET_UP_EXECUTIONS = 3  # of a fit


class Ours:
    """The loop that `gpubalance run` measures, without its own process."""

    def __init__(
        self,
        batches: Sequence[int],
        simulate: str = "2",
        *,
        data: str | None = None,
        model: str = "small",
        steps: int = 12,
        seconds: float = WINDOW_S,
        devices: Sequence[Device] = (),
        precision: Precision = "tf32",
        xla: bool = False,
    ) -> None:
        """Trains on simulated devices, unless others are given."""
        from gpubalance.devices.profile import simulated_devices
        from gpubalance.engine.session import Session
        from gpubalance.settings.settings import Settings

        simulated, joint = simulated_devices(simulate)
        settings = Settings(model=model, data=data, precision=precision, xla=xla)
        self._session = Session(devices or simulated, settings, joint, seed=0)
        self._split, self._steps, self._seconds = (
            BatchSplit(tuple(batches)),
            steps,
            seconds,
        )
        self._pipeline = data is not None

    def throughput(self) -> float:
        # The pipeline kept filling during the other's turn: what is ready would count too much.
        if self._pipeline:
            list(self._measure(0.0, 1))
        samples = list(self._measure(self._seconds, 2))
        seconds = sum(sample.seconds for sample in samples)
        return float(
            self._split.global_batch * sum(sample.steps for sample in samples) / seconds
        )

    def _measure(self, seconds: float, at_least: int) -> Iterator[Any]:
        how: dict[str, Any] = {
            "steps_per_timing": self._steps,
            "stamped": False,
            "pipeline": self._pipeline,
        }
        return self._session.measure(
            self._split, seconds=seconds, at_least=at_least, **how
        )


def small() -> Any:
    """The built-in model `small`."""
    from gpubalance.engine.models import small_model

    return small_model()


def _compiled(make: Make) -> Any:
    """The classifier of 28×28×1 images that `make` makes."""
    model = make()
    if not model.compiled:
        optimizer = getattr(model, "optimizer", None) or "adam"
        model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)
    return model


class BareLoop:
    """The loop of TensorFlow's guide to custom training, with its own batch for each replica."""

    def __init__(self, batches: Sequence[int]) -> None:
        import keras
        import tensorflow as tf

        strategy = tf.distribute.MirroredStrategy(_CPUS)
        self._global_batch = sum(batches)
        with strategy.scope():
            model = _compiled(small)
            model.optimizer.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(reduction=None)

        def train(values: Any) -> Any:
            inputs, labels = values
            with tf.GradientTape() as tape:
                loss = (
                    tf.reduce_sum(loss_of(labels, model(inputs, training=True)))
                    / self._global_batch
                )
            grads = tape.gradient(loss, [v.value for v in model.trainable_variables])
            model.optimizer.apply(grads, model.trainable_variables)
            return loss

        def share(context: Any) -> Any:
            return _samples(batches[context.replica_id_in_sync_group])

        self._values = strategy.experimental_distribute_values_from_function(share)

        @tf.function(autograph=False)
        def step(values: Any) -> Any:
            return strategy.reduce(
                "SUM", strategy.run(train, args=(values,)), axis=None
            )

        self._step = step

    def throughput(self) -> float:
        began = time.perf_counter()
        steps = 0
        while time.perf_counter() - began < WINDOW_S or steps < 2:
            loss = self._step(self._values)
            steps += 1
        float(loss)
        return self._global_batch * steps / (time.perf_counter() - began)


class KerasFit:
    """Keras' own training at an even split, from `data` or a pipeline that repeats one batch."""

    def __init__(
        self,
        global_batch: int,
        devices: Sequence[str] = _CPUS,
        make: Make = small,
        data: Make | None = None,
        *,
        steps_per_execution: int = 1,
    ) -> None:
        self._global_batch = global_batch
        self._devices = devices
        self._per_execution = steps_per_execution
        self._steps = 20 * steps_per_execution
        with self.scope():
            self._model = _compiled(make)
            self._model.steps_per_execution = steps_per_execution
        self.data = data() if data else repeated(global_batch)

    def scope(self) -> Any:
        """The scope in which the model is built."""
        import tensorflow as tf

        return tf.distribute.MirroredStrategy(self._devices).scope()

    def fit(self, **options: Any) -> Any:
        """Trains."""
        return self._model.fit(self.data, **options)

    def throughput(self) -> float:
        """Samples per second of the steps after the fit's first ones, which set it up."""
        import keras

        times: list[float] = []
        set_up_steps = _SET_UP_EXECUTIONS * self._per_execution

        def begins(batch: int, **_: Any) -> None:
            if batch == set_up_steps:
                self._model.optimizer.iterations.numpy()  # waits for all that is queued
                times.append(time.perf_counter())

        # No callback takes a step's logs, for which the host would wait.
        clock = keras.callbacks.LambdaCallback(
            on_train_batch_begin=begins,
            on_epoch_end=lambda *_, **__: times.append(time.perf_counter()),
        )
        self.fit(
            steps_per_epoch=self._steps + set_up_steps,
            epochs=1,
            verbose=0,
            callbacks=[clock],
        )
        began_s, ended_s = times
        seconds = ended_s - began_s
        rate = self._global_batch * self._steps / seconds
        executions = round(WINDOW_S * self._steps / seconds / self._per_execution)
        self._steps = max(10, executions) * self._per_execution
        return rate


class KerasAlone(KerasFit):
    """Keras' own training on a process's first device, without a strategy.

    XLA is as Keras chooses.
    """

    def __init__(self, batch: int, make: Make = small) -> None:
        super().__init__(batch, make=lambda: _with_keras_xla(make()))

    def scope(self) -> Any:
        return nullcontext()


def _with_keras_xla(model: Any) -> Any:
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


class SplitFit(KerasFit):
    """The same training with a split.

    The split sets the devices up: make it before anything else uses TensorFlow.
    """

    def __init__(
        self,
        split: Split,
        make: Make = small,
        data: Make | None = None,
        *,
        steps_per_execution: int = 1,
    ) -> None:
        self._split = split
        super().__init__(
            split.global_batch,
            make=make,
            data=data,
            steps_per_execution=steps_per_execution,
        )

    def scope(self) -> Any:
        return self._split.scope()

    def fit(self, **options: Any) -> Any:
        return self._split.fit(self._model, self.data, **options)

    def predict_one(self) -> None:
        """Predicts one sample, which is no usual batch of a training."""
        self._model.predict(_samples(1)[0], verbose=0)


def _samples(count: int) -> Any:
    import tensorflow as tf

    return tf.random.uniform((count, 28, 28, 1)), tf.random.uniform(
        (count, 1), 0, 10, tf.int32
    )


def repeated(count: int) -> Any:
    """A pipeline that repeats one batch of so many samples."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensors(_samples(count)).repeat()
