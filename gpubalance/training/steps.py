"""Keras' train, test and predict functions, over replicas whose batches differ.

Keras' `fit` handles global batches as on one device, and calls these functions for each. They deal the batch out and
call the step for it: see engine/step/step.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from gpubalance.engine.feed import Dealt, Feed
from gpubalance.engine.place import Place
from gpubalance.engine.step import built, parity
from gpubalance.engine.step.functions import Functions, at_a_time
from gpubalance.engine.step.verdict import Verdict
from gpubalance.errors import BadInput
from gpubalance.settings.shares import Shares
from gpubalance.training import keras_inside
from gpubalance.training.processes import Alike, end_together

# Called with a stamped step's seconds [replica, (began, computed, summed, finished)] and with its split. To measure the
# noise, two more columns have its norms (see `training`), unless each replica had the whole batch.
OnStamps = Callable[[Any, Shares], None]
# The batches on which a step is tried in parts, at most, while they do not tell how parts make the whole.
_LOOKS = 4


class Steps:
    """The functions for one model on one place, traced on first use."""

    def __init__(self, model: Any, place: Place, shares: Shares) -> None:
        built.take_over(model)
        self._model = model
        self._compiled = keras_inside.compiled(model)
        self._place = place
        self._shares = shares
        self._feed = Feed(place.names, shares.batches, place.first)
        self._alike = Alike(place)
        self._functions = Functions(model, place)
        self._looks = {"train": _LOOKS, "test": _LOOKS}
        self.is_open = False
        self._is_built = False
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
    def used(
        self, on_first: Callable[[Dealt], None], on_tried: Callable[[Verdict], None], sizes: Mapping[str, int]
    ) -> Iterator[None]:
        """Makes Keras' own `fit`, `evaluate` and `predict` of the model call these functions inside the block.

        `on_first` is called with the first batch, once all of the model's variables exist, `on_tried` with what a
        trial of the step found. `sizes` has the lengths of data that must be equal in all processes.
        """
        optimizer = getattr(self._model, "optimizer", None)
        # The model's own `built` does not tell: build(shape) of a subclass sets it without creating variables.
        is_built = all(layer.built for layer in self._model._flatten_layers())
        if is_built and optimizer is not None and not optimizer.built:
            with self._place.strategy.scope():  # a callback that restores it would build it outside the scope
                optimizer.build(self._model.trainable_variables)
        self.is_open, self._is_built = True, False
        self._tried, self._on_first, self._on_tried = None, on_first, on_tried
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
        return self._several(iterator, self._test_on)

    def predict(self, batches: Sequence[Any]) -> Any:
        """The outputs for all samples of some batches, in their order."""
        outputs = [self._functions.predict(self._feed.deal(batch)) for batch in batches]
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
                built.build(self._model, self._place.strategy, batch, trains=trains)
                self._is_built = True
                self._on_first(dealt)
            self._check("train" if trains else "test", batch, dealt)
            logs = step(dealt)
            self._feed.look_ahead(iterator)
        if logs is None:
            raise StopIteration
        return logs

    def _train_on(self, dealt: Dealt) -> Any:
        self._steps += 1
        stamped = bool(self.stamp_every) and self._steps % self.stamp_every == 0
        sizes = at_a_time(dealt.shares, self._shares)
        self._tried = dealt.shares, dealt.shares if dealt.whole else sizes
        logs, stamps, is_new = self._functions.train(dealt, sizes, stamped=stamped, noisy=self.noisy)
        if stamped and is_new:
            self._steps -= 1  # the first run of a trace is slower: the next step is stamped instead
        elif stamped and self.on_stamps is not None:
            self.on_stamps(stamps.numpy(), Shares(dealt.shares, sizes))
        return logs

    def _test_on(self, dealt: Dealt) -> Any:
        self._tried = dealt.shares, dealt.shares
        return self._functions.test(dealt)

    def _check(self, what: str, batch: Any, dealt: Dealt) -> None:
        """Tries the step in parts on a batch, and again on a few later ones while that does not tell.

        Raises BadInput for what a split can't train.
        """
        sizes = at_a_time(dealt.shares, self._shares)
        if not self._looks[what] or (self._place.replicas == 1 and sizes == dealt.shares):
            return
        self._looks[what] -= 1
        trains = what == "train"
        found = parity.check(self._model, batch, self._place.names[0], share=sizes[0], trains=trains)
        if found.refused is not None:
            raise BadInput(found.refused.message, remedy=found.refused.remedy)
        self._on_tried(found)
        if trains:
            parity.refuse_small(found, Shares(dealt.shares, sizes).smallest, self._model)
        if found.is_known:
            self._looks[what] = 0
        self._functions.judge(what, found)
