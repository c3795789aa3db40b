"""Keras' train, test and predict functions, over replicas whose batches differ.

Keras' `fit` handles global batches as on one device, and calls these functions for each. They deal the batch out and
call the traced function for it, one of those in functions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from gpubalance.engine.feed import Dealt, Feed, Kind, signature_of
from gpubalance.errors import BadInput
from gpubalance.settings.shares import Shares
from gpubalance.training import keras_inside, own_loss, own_step
from gpubalance.training.functions import predicting, testing, training
from gpubalance.training.place import Place
from gpubalance.training.processes import Alike, end_together

# Called with a stamped step's seconds [replica, (began, computed, summed, finished)] and with its split. To measure the
# noise, two more columns have its norms (see `training`), unless each replica had the whole batch.
OnStamps = Callable[[Any, Shares], None]


class Steps:
    """The functions for one model on one place, traced on first use."""

    def __init__(self, model: Any, place: Place, shares: Shares) -> None:
        keras_inside.take_over(model)
        self._model = model
        self._compiled = keras_inside.compiled(model)
        self._place = place
        self._shares = shares
        self._feed = Feed(place.names, shares.batches, place.first)
        self._alike = Alike(place)
        self._functions: dict[tuple[Any, ...], Any] = {}
        self._signatures: dict[tuple[str, str], Any] = {}
        self._last_kinds: dict[tuple[str, str], Kind] = {}
        self.is_open = False
        self._is_built = False
        self._is_tried = False
        self.stamp_every = 0
        self.noisy = False
        self.on_stamps: OnStamps | None = None
        self._steps = 0
        self._tried: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def tried(self) -> Shares | None:
        """The shares of the last step that began, None before the first."""
        return Shares(*self._tried) if self._tried else None

    @contextmanager
    def used(self, on_first: Callable[[Dealt], None], sizes: Mapping[str, int]) -> Iterator[None]:
        """Makes Keras' own `fit`, `evaluate` and `predict` of the model call these functions inside the block.

        `on_first` is called with the first batch, once all of the model's variables exist. `sizes` has the lengths of
        data that must be equal in all processes.
        """
        optimizer = getattr(self._model, "optimizer", None)
        # The model's own `built` does not tell: build(shape) of a subclass sets it without creating variables.
        built = all(layer.built for layer in self._model._flatten_layers())
        if built and optimizer is not None and not optimizer.built:
            with self._place.strategy.scope():  # a callback that restores it would build it outside the scope
                optimizer.build(self._model.trainable_variables)
        self.is_open, self._is_built = True, False
        self._tried, self._on_first = None, on_first
        try:
            self._alike.begin(sizes)
            with keras_inside.on_one_device(
                self._model, train_function=self.train, test_function=self.test, predict_function=self.predict
            ):
                yield
        finally:
            self.is_open = False
            self.stamp_every, self.on_stamps = 0, None
            self._feed.forget()

    def end_together(self, method: str, bound: dict[str, Any]) -> None:
        """Changes the method's arguments so that in a cluster it ends in all processes when it ends in one."""
        if self._place.cluster is not None:
            end_together(method, bound, self._alike)

    def is_of(self, model: Any) -> bool:
        """Whether these functions are for that model."""
        return self._model is model

    def are_of(self, model: Any) -> bool:
        """Whether these functions are for that model as it is compiled now."""
        pairs = zip(self._compiled, keras_inside.compiled(model), strict=True)
        return self._model is model and all(before is now for before, now in pairs)

    def change_to(self, shares: Shares) -> None:
        """Trains with this split from the next step on; nothing is traced again for it."""
        self._feed.batches = shares.batches
        self._shares = shares

    def train(self, iterator: Iterator[Any]) -> Any:
        """Trains `steps_per_execution` steps and returns the last one's logs. Raises StopIteration without data."""
        return self._several(iterator, self._train_on, trains=True)

    def test(self, iterator: Iterator[Any]) -> Any:
        """Does the same for `evaluate`."""
        return self._several(iterator, lambda dealt: self._call("test", dealt))

    def predict(self, batches: Sequence[Any]) -> Any:
        """The outputs for all samples of some batches, in their order."""
        outputs = [self._call("predict", self._feed.deal(batch)) for batch in batches]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)

    def _several(self, iterator: Iterator[Any], step: Callable[[Dealt], Any], *, trains: bool = False) -> Any:
        logs = None
        for _ in range(self._model.steps_per_execution):
            try:
                batch, dealt = self._feed.take(iterator)
            except StopIteration:
                self._alike.has(0)
                if not self._is_built:
                    raise BadInput(
                        "the data has no samples", remedy="look at what a filter or a take leaves, and at its files"
                    ) from None
                break
            self._alike.has(dealt.samples)
            self._alike.check(batch, self._model)
            if not self._is_built:  # what Keras leaves to the first batch
                keras_inside.build(self._model, self._place.strategy, batch, trains=trains)
                own_loss.check(self._model, batch, self._at_a_time(dealt.shares)[0])
                self._is_built = True
                self._on_first(dealt)
            if trains and not self._is_tried:
                own_step.check(self._model, batch, self._at_a_time(dealt.shares)[0])
                self._is_tried = True
            logs = step(dealt)
            self._feed.look_ahead(iterator)
        if logs is None:
            raise StopIteration
        return logs

    def _train_on(self, dealt: Dealt) -> Any:
        self._steps += 1
        stamped = bool(self.stamp_every) and self._steps % self.stamp_every == 0
        known = len(self._functions)
        logs, stamps = self._call("train", dealt, stamped=stamped)
        if stamped and len(self._functions) > known:
            self._steps -= 1  # the first run of a trace is slower: the next step is stamped instead
        elif stamped and self.on_stamps is not None:
            self.on_stamps(stamps.numpy(), Shares(dealt.shares, self._at_a_time(dealt.shares)))
        return logs

    def _call(self, kind: str, dealt: Dealt, *, stamped: bool = False) -> Any:
        like = kind, dealt.kind.like
        if self._last_kinds.get(like) is not dealt.kind:
            self._last_kinds[like] = dealt.kind
            self._widen(like)
        sizes = self._at_a_time(dealt.shares)
        accumulates = kind == "train" and not dealt.whole and sizes != dealt.shares
        self._tried = dealt.shares, sizes if accumulates else dealt.shares
        key = (like, dealt.whole, accumulates, stamped, stamped and self.noisy and not dealt.whole)
        if key not in self._functions:
            self._functions[key] = self._traced(key, self._signatures[like])
        with tf.device("/CPU:0"):
            weights = tf.constant(dealt.weights, tf.float32)
            at_a_time = tf.constant(sizes, tf.int32)
        return self._functions[key](dealt.values, weights, tf.constant(float(dealt.samples)), at_a_time)

    def _widen(self, like: tuple[str, str]) -> None:
        """Widens the signature to the last kind of batch, and drops the traces that did not accept it."""
        known = self._signatures.get(like)
        self._signatures[like] = signature_of(self._last_kinds[like], known)
        if self._signatures[like] != known:
            self._functions = {key: made for key, made in self._functions.items() if key[0] != like}

    def _at_a_time(self, shares: tuple[int, ...]) -> tuple[int, ...]:
        """The samples that each replica takes at a time: the split's micro-batch, or its share if that is smaller."""
        if not self._shares.accumulates:
            return shares
        return tuple(min(share, micro) for share, micro in zip(shares, self._shares.micro_batches, strict=True))

    def _traced(self, key: tuple[Any, ...], signature: Any) -> Any:
        """The traced function for a key; one trace serves every split and every size of batch."""
        (kind, _), whole, accumulates, stamped, noisy = key
        model, place = self._model, self._place
        if kind == "train":
            options = {"whole": whole, "accumulates": accumulates, "stamped": stamped, "noisy": noisy}
            function = training(model, place, **options)
        else:
            function = (testing if kind == "test" else predicting)(model, place, whole=whole)
        made = tf.function(
            function,
            input_signature=[
                (signature,) * len(place.names),
                tf.TensorSpec((place.replicas,), tf.float32),
                tf.TensorSpec((), tf.float32),
                tf.TensorSpec((place.replicas,), tf.int32),
            ],
            autograph=False,
        )
        try:
            return made.get_concrete_function()
        except Exception as error:
            if type(error).__name__ != "UnliftableError":  # of a variable that is made while a step is traced
                raise
            raise BadInput(
                f"the model {model.name} creates a variable in its first step, as keras.random without a seed does",
                remedy="create it before: seed = keras.random.SeedGenerator(1), and draw with seed=seed",
            ) from error
