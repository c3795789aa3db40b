"""Keras' train, test and predict functions, over replicas whose batches differ.

Keras' `fit` deals with global batches as on one device, and calls these for each. Here the batch is dealt out, every
replica runs the model's own `train_step` on its share, and what it gives sums to one device's: see `keras_inside`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.accumulate import accumulated, refuse_what_cannot_accumulate
from gpubalance.engine.step import Points, batch_of, sum_over_replicas
from gpubalance.training import keras_inside
from gpubalance.training.feed import Dealt, Feed, dealt_signature, kind_of, signature_of
from gpubalance.training.place import Place

# Each stamped step's [replica, (begin, computed, finished)], in seconds, and its shares.
OnStamps = Callable[[Any, Sequence[int]], None]


class Steps:
    """The functions for one model on one place. A context manager: while it is open, Keras' own `fit` uses them."""

    def __init__(self, model: Any, place: Place, batches: Sequence[int], micro_batches: Sequence[int] | None) -> None:
        keras_inside.check(model)
        self._model = model
        self._compiled = keras_inside.compiled(model)
        self._place = place
        self._micro_batches = None if micro_batches is None else tuple(micro_batches)
        self._feed = Feed(place.strategy, place.names, batches)
        self._functions: dict[tuple[Any, ...], Any] = {}
        self._signatures: dict[tuple[str, str], Any] = {}
        self._open = ExitStack()
        self.is_open = False
        self._is_prepared = self._takes_gradients = False
        self.stamp_every = 0
        self.on_stamps: OnStamps | None = None
        self._steps = 0

    def __enter__(self) -> Steps:
        optimizer = getattr(self._model, "optimizer", None)
        if self._model.built and optimizer is not None and not optimizer.built:
            with self._place.strategy.scope():  # a callback that restores it would build it outside
                optimizer.build(self._model.trainable_variables)
        functions = {"train_function": self.train, "test_function": self.test, "predict_function": self.predict}
        self._open.enter_context(keras_inside.on_one_device(self._model, functions))
        self.is_open = True
        return self

    def __exit__(self, *error: object) -> None:
        self.is_open = False
        self._open.close()
        self._is_prepared = self._takes_gradients = False
        self.stamp_every, self.on_stamps = 0, None
        self._feed.forget()

    def is_of(self, model: Any) -> bool:
        """Whether they are that model's."""
        return self._model is model

    def are_of(self, model: Any) -> bool:
        """Whether they are that model's, as it is compiled now."""
        pairs = zip(self._compiled, keras_inside.compiled(model), strict=True)
        return self._model is model and all(before is now for before, now in pairs)

    def set_batches(self, batches: Sequence[int]) -> None:
        """From the next step on the split is this one; nothing is traced anew for it."""
        self._feed.batches = tuple(batches)
        self._micro_batches = None if self._micro_batches is None else tuple(batches)

    def train(self, iterator: Iterator[Any]) -> Any:
        """As many steps as `steps_per_execution` says; the logs after the last. Raises StopIteration without data."""
        return self._several(iterator, self._train_on)

    def test(self, iterator: Iterator[Any]) -> Any:
        """The same for `evaluate`."""
        return self._several(iterator, self._test_on)

    def predict(self, batches: Sequence[Any]) -> Any:
        """The outputs for all samples of some batches, in their order."""
        outputs = [self._call("predict", batch, self._feed.deal(batch)) for batch in batches]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)

    def _several(self, iterator: Iterator[Any], step: Callable[[Any, Dealt], Any]) -> Any:
        logs = None
        for _ in range(self._model.steps_per_execution):
            try:
                batch, dealt = self._feed.take(iterator)
            except StopIteration:
                break
            logs = step(batch, dealt)
            self._feed.look_ahead(iterator)
        if logs is None:
            raise StopIteration
        return logs

    def _train_on(self, batch: Any, dealt: Dealt) -> Any:
        self._prepare(batch, trains=True)
        self._steps += 1
        stamped = bool(self.stamp_every) and self._steps % self.stamp_every == 0
        known = len(self._functions)
        logs, stamps = self._call("train", batch, dealt, stamped=stamped)
        if stamped and len(self._functions) > known:
            self._steps -= 1  # the first run of a trace says nothing: the next step is stamped instead
        elif stamped and self.on_stamps is not None:
            self.on_stamps(stamps.numpy(), dealt.shares)
        return logs

    def _test_on(self, batch: Any, dealt: Dealt) -> Any:
        self._prepare(batch)
        return self._call("test", batch, dealt)

    def _prepare(self, batch: Any, *, trains: bool = False) -> None:
        """Builds what Keras leaves to the first batch, under the strategy, before steps are changed for it."""
        if not self._is_prepared:
            keras_inside.build(self._model, self._place.strategy, batch)
            self._open.enter_context(keras_inside.counting_once(self._model))
            self._is_prepared = True
        if trains and not self._takes_gradients:
            self._open.enter_context(keras_inside.taking_gradients(self._model))
            self._takes_gradients = True

    def _call(self, kind: str, batch: Any, dealt: Dealt, *, stamped: bool = False) -> Any:
        like = kind, kind_of(batch)
        signature = signature_of(batch, self._signatures.get(like))
        if signature != self._signatures.get(like):
            self._signatures[like] = signature
            self._functions = {key: made for key, made in self._functions.items() if key[0] != like}
        accumulates = kind == "train" and not dealt.whole and self._accumulates(dealt.shares)
        key = (like, dealt.whole, accumulates, stamped)
        if key not in self._functions:
            self._functions[key] = self._traced(key, signature)
        with tf.device("/CPU:0"):
            weights = tf.constant(dealt.weights, tf.float32)
            sizes = tf.constant(self._at_a_time(dealt.shares), tf.int32)
        return self._functions[key](dealt.values, weights, tf.constant(float(dealt.samples)), sizes)

    def _accumulates(self, shares: Sequence[int]) -> bool:
        return tuple(shares) != self._at_a_time(shares)

    def _at_a_time(self, shares: Sequence[int]) -> tuple[int, ...]:
        """What each replica may have in its memory: a larger share, of a larger batch, is taken in parts."""
        if self._micro_batches is None:
            return tuple(shares)
        return tuple(min(share, micro) for share, micro in zip(shares, self._micro_batches, strict=True))

    def _traced(self, key: tuple[Any, ...], signature: Any) -> Any:
        """One trace a kind, for every split and every size of batch."""
        (kind, _), whole, accumulates, stamped = key
        if kind == "train":
            function = self._training(whole=whole, accumulates=accumulates, stamped=stamped)
        else:
            function = self._testing(whole=whole) if kind == "test" else self._predicting(whole=whole)
        if self._model.run_eagerly:
            return function
        replicas = len(self._place.names)
        return tf.function(
            function,
            input_signature=[
                dealt_signature(self._place.strategy, signature),
                tf.TensorSpec((replicas,), tf.float32),
                tf.TensorSpec((), tf.float32),
                tf.TensorSpec((replicas,), tf.int32),
            ],
            autograph=False,
        )

    def _training(self, *, whole: bool, accumulates: bool, stamped: bool) -> Callable[..., Any]:
        model, strategy = self._model, self._place.strategy
        if accumulates:
            refuse_what_cannot_accumulate(model)

        def replica(data: Any, weights: Any, global_batch: Any, micro_batches: Any) -> tuple[Any, Any]:
            context = tf.distribute.get_replica_context()
            number = _number(context)
            own, size = weights[number], micro_batches[number]
            sizes = [batch_of(data), size] if accumulates else [batch_of(data)]
            points = Points(self._place.clocks[number], sizes, stamped=stamped)
            data = points.begin(data)
            if accumulates:
                grads, variables, logs = _accumulated(model, data, global_batch, size)
            else:
                with keras_inside.part_of(own, whole=whole, counts=not whole or number == 0):
                    grads, variables, logs = keras_inside.gradients_of(model, data)
            grads = points.computed(own, grads)
            if variables:
                model.optimizer.apply(sum_over_replicas(context, grads), variables)
            _average(context, keras_inside.kept_by_each(model), own)
            return self._own_logs(logs, own), points.finished(own, variables)

        def step(*arguments: Any) -> tuple[Any, Any]:
            logs, stamps = strategy.run(replica, args=arguments)
            return self._logs(logs), tf.stack(strategy.experimental_local_results(stamps))

        return step

    def _testing(self, *, whole: bool) -> Callable[..., Any]:
        model, strategy = self._model, self._place.strategy

        def replica(data: Any, weights: Any, *unused: Any) -> Any:
            del unused
            number = _number(tf.distribute.get_replica_context())
            counts = not whole or number == 0
            with keras_inside.part_of(weights[number], whole=whole, counts=counts):
                return self._own_logs(model.test_step(data), weights[number])

        return lambda *arguments: self._logs(strategy.run(replica, args=arguments))

    def _own_logs(self, logs: Any, weight: Any) -> dict[str, Any]:
        """What a user's own step returns and no metric is, as this replica's part; None for what a metric is."""
        metrics = self._model.get_metrics_result()
        return {name: None if name in metrics else tf.cast(value, tf.float32) * weight for name, value in logs.items()}

    def _logs(self, of_replicas: Any) -> Any:
        """What the metrics say of all samples; what else a user's own step returns is weighed by its samples."""
        metrics = self._model.get_metrics_result()
        return {
            name: metrics[name]
            if value is None
            else self._place.strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)
            for name, value in of_replicas.items()
        }

    def _predicting(self, *, whole: bool) -> Callable[..., Any]:
        model, strategy = self._model, self._place.strategy

        def together(values: Any) -> Any:
            parts = strategy.experimental_local_results(values)
            with tf.device("/CPU:0"):
                return tf.identity(parts[0]) if whole else tf.concat(parts, axis=0)

        def step(data: Any, *unused: Any) -> Any:
            del unused
            return keras.tree.map_structure(together, strategy.run(model.predict_step, args=(data,)))

        return step


def _number(context: Any) -> int:
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def _average(context: Any, variables: Sequence[Any], weight: Any) -> None:
    """Each replica moved its own; the mean, by samples, of moving means is that of the whole batch's mean."""
    if not variables:
        return
    own = [tf.convert_to_tensor(variable.value) for variable in variables]
    parts = [value * tf.cast(weight, value.dtype) for value in own]
    for variable, value in zip(variables, context.all_reduce(tf.distribute.ReduceOp.SUM, parts), strict=True):
        variable.assign(value)


def _accumulated(model: Any, data: Any, global_batch: Any, micro_batch: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The gradients, their variables and the metrics; what else a `train_step` returns is a micro-batch's only."""
    variables: list[Any] = []

    def gradients(part: Any, _: Any, of: Any) -> tuple[Any, Any]:
        weight = tf.cast(batch_of(part), tf.float32) / of
        with keras_inside.part_of(weight, micro=True):
            grads, variables[:], _logs = keras_inside.gradients_of(model, part)
        return weight, grads

    _, grads = accumulated(gradients, (data, ()), global_batch, micro_batch)
    return grads, variables, dict.fromkeys(model.get_metrics_result())
