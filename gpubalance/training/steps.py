"""Keras' train, test and predict functions, over replicas whose batches differ.

Keras' `fit` handles global batches as on one device, and calls these functions for each. They deal
the batch out and call the step for it: see engine/step/step.py.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from gpubalance.engine.datasets import are_open, is_batched
from gpubalance.engine.failures import memory_row
from gpubalance.engine.feed import Dealt, Feed
from gpubalance.engine.step import built
from gpubalance.engine.step.functions import Functions
from gpubalance.engine.users_lines import own_traceback, users_line
from gpubalance.errors import BadInput
from gpubalance.results.decomposition import UNTRIED
from gpubalance.settings.shares import Shares
from gpubalance.training import data, measured
from gpubalance.training.keras_functions import KerasFunctions
from gpubalance.training.memory import out_of_memory
from gpubalance.training.processes import Alike, end_together, quiet

if TYPE_CHECKING:
    from gpubalance.training.split import Split

# The batches on which a step is tried in parts, at most, while they do not tell how parts make the
# whole.
_LOOKS = 4
# What losses and metrics say of labels that are None.
_OF_NOTHING = re.compile("None values not supported|'NoneType' object")


class Steps(KerasFunctions):
    """The functions for one model and a split, traced on first use."""

    def __init__(self, split: Split, model: Any) -> None:
        super().__init__(model)
        self._split, self._place = split, split.place
        self._feed = Feed(self._place, split.shares)
        self._alike = Alike(self._place)
        self._functions = Functions(model, self._place)
        self._looks = {"train": _LOOKS, "test": _LOOKS}
        self._found = UNTRIED  # of training
        self._is_built, self._has_labels = False, True  # until the first batch
        self._trained = 0
        self._begun: Shares | None = None  # the last step that began

    def call(self, method: Callable[..., Any], options: dict[str, Any]) -> Any:
        """Calls Keras' method, with the data in the split's batches."""
        model, trains, bound = self.model, method.__name__ == "fit", options
        _refuse_another_scope(model, self._place.strategy, method.__name__)
        self._bring(method.__name__, bound)
        self._is_built, self._has_labels, self._begun = False, True, None
        self._make_optimizer()
        try:
            self._alike.begin(data.sizes(bound))
            with self.used(bound):
                return method(model, **bound)
        except tf.errors.OpError as error:
            row = memory_row(error)
            if row or isinstance(error, tf.errors.ResourceExhaustedError):
                names, split = self._place.names, self._split
                # The first batch may be too large to be dealt out.
                tried = self._begun or self._feed.dealing
                told = out_of_memory(
                    str(error), names, split.devices, split.shares, tried, trains=trains
                )
                told.cause = row.cause if row else told.cause
                raise told from error
            # Of a graph, whose own text is a hundred lines.
            if isinstance(error, tf.errors.InvalidArgumentError):
                failed = f"{method.__name__} of the model {model.name} failed"
                raise BadInput(f"{failed}:\n{own_traceback(error)}") from None
            raise
        except (AttributeError, ValueError) as error:
            if self._has_labels or not _OF_NOTHING.search(str(error)):
                raise
            raise BadInput(
                "the data has no labels (y)", remedy="give x and y, or a dataset of (x, y)"
            ) from error
        finally:
            self._feed.stop()
            self._split.stamping = None

    def predict(self, batches: Sequence[Any]) -> Any:
        """The outputs for all samples of some batches, in their order."""
        outputs = [self._functions.predict(self._feed.deal(batch)) for batch in batches]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)

    def _train_on(self, iterator: Iterator[Any]) -> Any:
        dealt = self._next(iterator, "train")
        self._begun = dealt.shares
        # A last micro-batch may be too small.
        if self._split.shares.accumulates and not dealt.whole:
            self._found.refuse_small(self._begun.smallest, self.model)
        self._trained += 1
        monitor = self._split.stamping
        stamped = monitor is not None and self._trained % monitor.every == 0
        noisy = monitor is not None and bool(monitor.noise)
        logs, stamps, is_new = self._functions.train(dealt, stamped=stamped, noisy=noisy)
        if stamped and is_new:
            # The first run of a trace is slower: the next step is stamped instead.
            self._trained -= 1
        elif stamped and monitor is not None:
            monitor.note(stamps.numpy(), dealt.shares)
        return logs

    def _test_on(self, iterator: Iterator[Any]) -> Any:
        dealt = self._next(iterator, "test")
        self._begun = Shares(dealt.shares.batches)
        return self._functions.test(dealt)

    def _next(self, iterator: Iterator[Any], what: str) -> Dealt:
        """The next batch to train or test on, after all that is done before a first one. Raises
        StopIteration.

        The ones after it are on their way by then, once no more is to be found out about how to
        deal them.
        """
        self._feed.split = self._split.shares
        try:
            batch, dealt = self._feed.take(iterator)
        except StopIteration:
            self._alike.has(0)
            if not self._is_built:
                raise BadInput(
                    "the data has no samples",
                    remedy="look at what a filter or a take leaves, and at its files",
                ) from None
            raise
        self._alike.has(dealt.samples)
        self._alike.check(batch, self.model)
        if not self._is_built:  # what Keras leaves to the first batch
            self._has_labels = isinstance(batch, tuple | list) and len(batch) > 1
            built.build(self.model, self._place.strategy, batch, trains=what == "train")
            self._is_built = True
            if what == "train":
                self._tell_of_another_model()
                if not self._split.of_any_batch:
                    self._tell(data.other_batches(dealt.shares.batches, self._split.global_batch))
        if self._looks[what] and (self._place.replicas > 1 or dealt.shares.accumulates):
            self._try(what, batch, dealt.shares)
            return self._feed.deal(batch)  # once more, by what that found
        self._feed.look_ahead(iterator)
        return dealt

    def _try(self, what: str, batch: Any, shares: Shares) -> None:
        """Tries the step in parts on a batch, and again on a few later ones while that does not
        tell.

        Raises BadInput for what a split can't train.
        """
        found = self._functions.try_in_parts(what, batch, share=shares.micro_batches[0])
        if found.refused is not None:
            raise BadInput(found.refused.message, remedy=found.refused.remedy)
        self._looks[what] = 0 if found.is_known else self._looks[what] - 1
        self._feed.least = max(self._feed.least, found.least)
        for text in found.warned:
            self._tell(text)
        if what == "train":
            self._found = found
            found.refuse_small(shares.smallest, self.model)
            self._tell_of_another_model(found.fingerprint)

    def _bring(self, method: str, bound: dict[str, Any]) -> None:
        """Brings the method's data into the split's batches, and warns of what that changes."""
        split, model, trains = self._split, self.model, method == "fit"
        for text in built.check(model, trains=trains):
            self._tell(text)
        if not split.is_first:
            quiet(bound)
        data.check(bound, devices=len(split.devices), trains=trains)
        if trains:
            self._tell(measured.unlike_precision(model, split.precision))
        if trains and all(layer.built for layer in model._flatten_layers()):
            self._tell_of_another_model()
        given = bound["x"]
        data.in_batches_of(None if split.of_any_batch else split.global_batch, model, bound)
        is_other = (
            bound["x"] is not given and is_batched(given, model) and not are_open(given, model)
        )
        if trains and is_other:
            self._tell(data.regrouping(given, split.global_batch))
        # Or one process would wait for ever for those that ended.
        if self._place.cluster is not None:
            end_together(method, bound, self._alike)

    def _make_optimizer(self) -> None:
        """Creates the optimizer's variables in the scope: a callback that restores them would do so
        outside.
        """
        optimizer = getattr(self.model, "optimizer", None)
        # The model's own `built` does not tell: build(shape) of a subclass sets it without creating
        # variables.
        is_built = all(layer.built for layer in self.model._flatten_layers())
        if is_built and optimizer is not None and not optimizer.built:
            with self._place.strategy.scope():
                optimizer.build(self.model.trainable_variables)

    def _tell_of_another_model(self, step: measured.Fingerprint | None = None) -> None:
        """Warns of a model, or a step of it, that the plan was not measured with."""
        if self._split.plan is not None:
            self._tell(measured.unlike(self._split.plan, self.model, self._split.simulate, step))

    def _tell(self, text: str) -> None:
        """Warns once of a text, at the user's line; of several processes only the first warns."""
        if text and self._split.is_first and text not in self._split.told:
            self._split.told.add(text)
            warnings.warn_explicit(text, UserWarning, *users_line())


def _refuse_another_scope(model: Any, strategy: Any, method: str) -> None:
    """Raises BadInput for a model that was built or compiled outside the strategy's scope, or is
    trained inside it.
    """
    if tf.distribute.has_strategy():
        raise BadInput(
            f"{method} was called inside `with split.scope():`",
            remedy="un-indent it: the scope is for building, loading and compiling the model",
        )
    elsewhere = [
        layer.name
        for layer in model._flatten_layers(include_self=False)
        for variable in layer._trainable_variables + layer._non_trainable_variables
        if not strategy.extended.variable_created_in_scope(variable.value)
    ]
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    remedy = "with split.scope(): build it, load it and compile it"
    if model._distribute_strategy is not strategy:
        what = f"the model {model.name} was built"
    elif elsewhere:
        what = f"the layer {elsewhere[0]} of the model {model.name} was built"
    elif getattr(inner, "_distribution_strategy", strategy) is not strategy:
        what = f"the optimizer of the model {model.name} was made, or the model compiled,"
        remedy = (
            "compile it again, with a new optimizer, in the scope: with split.scope(): "
            "model.compile(…)"
        )
    else:
        return
    raise BadInput(
        f"{what} outside this split's scope(): its variables are elsewhere", remedy=remedy
    )
