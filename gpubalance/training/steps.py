"""Keras' train, test and predict functions, over replicas whose batches differ.

Keras' `fit` handles global batches as on one device, and calls these functions for each. They deal
the batch out and call the step for it: see engine/step/step.py.
"""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine import data_faults
from gpubalance.engine.datasets import cleaned
from gpubalance.engine.feed import AHEAD, Dispatched, Feed
from gpubalance.engine.iterators import Batches
from gpubalance.engine.replacing import tracing_lock
from gpubalance.engine.step import built
from gpubalance.engine.step.several import are_equal
from gpubalance.engine.users_errors import own_code_named, own_traceback
from gpubalance.errors import BadInput, OutOfMemory
from gpubalance.remedies import match
from gpubalance.results.combine_rules import UNTRIED
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.training import data, launched, measured
from gpubalance.training.called_function import set_before_text
from gpubalance.training.compiled import CompiledSteps
from gpubalance.training.device_split import DeviceSplit
from gpubalance.training.keras_functions import KerasFunctions
from gpubalance.training.memory import out_of_memory, ran_out
from gpubalance.training.processes import Processes, end_together, quiet
from gpubalance.training.scope import refuse_another_scope
from gpubalance.training.step_warnings import StepWarnings

# The most batches on which a step is tried in parts, while they do not tell how parts make a whole.
_TRIES = 4
# What losses and metrics say of labels that are None.
_OF_NOTHING = re.compile("None values not supported|'NoneType' object")


class Steps(KerasFunctions):
    """The functions for one model and a split, traced on first use."""

    def __init__(self, split: DeviceSplit, model: Any) -> None:
        super().__init__(model)
        # Whoever calls holds it. The model holds these steps, and must not hold all its splits.
        self._split: DeviceSplit = weakref.proxy(split)
        self._replicas = split.replicas
        self._feed = Feed(self._replicas, split.shares)
        self._processes = Processes(self._replicas)
        self._warnings = StepWarnings(self._split, model)
        self._compiled_steps = CompiledSteps(self._split, model, self._warnings.say)
        self._functions = self._compiled_steps.functions
        self._tries_left = {"train": _TRIES, "test": _TRIES}
        self._combine_rules = UNTRIED  # of training
        # As the optimizer counts. A monitor has every so many-th of them stamped.
        self._trained_steps = 0
        self._stamps_next = False  # true if the last stamped step does not count
        # Until a call's first batch these are as follows.
        self._is_built = False
        self._has_labels = True
        self._last_shares: BatchSplit | None = None  # of the last step that began
        self._in_a_row = 1  # steps in one call, at most
        self._method = ""
        self._shapes: Any = None  # of the latest batch
        self._inputs: Any = None  # what they are of, without values

    def call(self, method: Callable[..., Any], options: dict[str, Any]) -> Any:
        """Calls Keras' method, with the data in the split's batches."""
        name = method.__name__
        self.asks_itself = name == "predict"  # Keras asks there, else the feed
        self._method = name
        refuse_another_scope(self.model, self._replicas.strategy, name)
        self._prepare(name, options)
        self._is_built = False
        self._has_labels = True
        self._last_shares = None
        self._in_a_row = 1
        self._feed.begin()
        self._make_optimizer()
        try:
            self._processes.compare_sizes(data.sizes(options))
            with (
                own_code_named(f"{name} of the model {self.model.name}"),
                self.called_by_keras(options),
                launched.reports.of_call(name, options),
            ):
                result = method(self.model, **options)
            if name == "fit":
                self._warnings.of_no_finite_loss(getattr(result, "history", {}))
            return result
        except tf.errors.OpError as error:
            if ran_out(error):
                raise self._out_of_memory(error, trains=name == "fit") from error
            # An error of a graph, whose own text is a hundred lines.
            if isinstance(error, tf.errors.InvalidArgumentError):
                fault = data_faults.of_class_number(str(error))
                fault = fault or self._fault_of_inputs()
                if fault is not None:
                    raise fault from None
                failed = f"{name} of the model {self.model.name} failed"
                known = match(str(error))
                raise BadInput(
                    f"{failed}:\n{own_traceback(error)}",
                    cause=known.cause if known else "",
                    remedy=known.remedy if known else "",
                ) from None
            raise
        except (AttributeError, ValueError) as error:
            fault = data_faults.of_labels(error)
            if fault is not None:
                raise fault from None
            if self._has_labels or not _OF_NOTHING.search(str(error)):
                raise
            raise BadInput(
                "the data has no labels (y)",
                remedy="give x and y, or a dataset of (x, y)",
            ) from error
        finally:
            self._feed.stop()
            self.monitor = None

    def _fault_of_inputs(self) -> BadInput | None:
        """The error for the inputs of the latest batch, if the model refuses their shape."""
        name = "x"
        if self._method == "fit" and self._feed.kind == "test":
            name = "x of validation_data"
        return data_faults.of_inputs(self.model, self._inputs, name)

    def _out_of_memory(self, error: BaseException, *, trains: bool) -> OutOfMemory:
        split = self._split
        # No step begins if the first batch is too large to be dispatched.
        tried = self._last_shares or self._feed.dealing
        monitor = self.monitor
        return out_of_memory(
            error,
            self._replicas.names,
            split.devices,
            split.shares,
            tried,
            trains=trains,
            changes=monitor.changes if monitor is not None else (),
        )

    def trace_again(self, what: str) -> None:
        """Traces and tries them again, with the layers that are trainable now."""
        self._compiled_steps.trace_again(what)
        if what in self._tries_left:
            self._tries_left[what] = _TRIES

    def predict(self, batches: Sequence[Any]) -> Any:
        """The outputs for all samples of some batches, in their order."""
        launched.reports.note_step()
        self._feed.kind = "predict"
        outputs = []
        for batch in batches:
            dispatched = self._feed.deal(cleaned(batch))
            self._note_inputs(batch, dispatched)
            outputs.append(self._functions.predict(dispatched))
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)

    def train(self, iterator: Iterator[Any]) -> Any:
        """Trains `steps_per_execution` steps, several in one call where that is worth it."""
        left = self.model.steps_per_execution
        logs = None
        while left:
            batches = self._next_ones(iterator, self._count_in_a_row(left))
            if not batches:
                break
            left -= len(batches)
            if len(batches) > 1 and are_equal(batches):
                logs = self._train_in_a_row(batches)
            else:
                for dispatched in batches:
                    logs = self._train_on_dispatched(dispatched)
            if left and self._in_a_row == 1 and self._is_tried("train", batches[-1]):
                self._in_a_row = self._max_in_a_row(iterator, batches[-1])
        if logs is None:
            raise StopIteration
        return logs

    def _next_ones(self, iterator: Iterator[Any], maximum: int) -> list[Dispatched]:
        """So many of the next batches, fewer at the end."""
        batches: list[Dispatched] = []
        try:
            while len(batches) < maximum:
                batches.append(self._next(iterator, "train"))
        except StopIteration:
            pass
        return batches

    def _max_in_a_row(self, iterator: Iterator[Any], dispatched: Dispatched) -> int:
        """How many steps one call may have, once one was traced.

        A generator is asked for no batches that are not needed yet. Processes train alike only as
        long as each step is theirs.
        """
        if self._replicas.cluster is not None or not isinstance(iterator, Batches):
            return 1
        return self._compiled_steps.max_in_a_row(dispatched)

    def _count_in_a_row(self, left: int) -> int:
        """How many of the steps that are left the next call has: none that is stamped beside one.

        A power of two, as each number takes a function of its own.
        """
        maximum = min(left, self._in_a_row)
        if self.monitor is not None:
            every = self.monitor.every
            until_stamped = every - self._trained_steps % every - 1
            maximum = 1 if self._stamps_next else min(maximum, until_stamped)
        return 1 << max(0, maximum.bit_length() - 1)

    def _train_in_a_row(self, batches: list[Dispatched]) -> Any:
        for dispatched in batches:
            self._note_training(dispatched)
        known = self._functions.first_steps
        began_s = time.perf_counter()
        logs = self._functions.train_in_a_row(batches)
        if self.monitor is not None:
            took_s = time.perf_counter() - began_s
            is_first = self._functions.first_steps > known
            # What such a function is made in is not shared out over its steps.
            each_s = took_s if is_first else took_s / len(batches)
            self.monitor.count(self._trained_steps, each_s, is_first=is_first)
        return logs

    def _train_on(self, iterator: Iterator[Any]) -> Any:
        return self._train_on_dispatched(self._next(iterator, "train"))

    def _note_training(self, dispatched: Dispatched) -> None:
        self._last_shares = dispatched.shares
        launched.reports.note_step(trains=True)
        # A last micro-batch may be too small.
        if self._split.shares.accumulates and not dispatched.replicated:
            self._combine_rules.refuse_small(dispatched.shares.smallest, self.model)
        self._trained_steps += 1

    def _train_on_dispatched(self, dispatched: Dispatched) -> Any:
        self._note_training(dispatched)
        monitor = self.monitor
        if monitor is None:
            logs, _, _ = self._compiled_steps.train(dispatched)
            return logs
        stamped = self._stamps_next or self._trained_steps % monitor.every == 0
        noisy = bool(monitor.noise)  # its stamps have the gradients' norms too
        known = self._functions.first_steps
        began_s = time.perf_counter()
        logs, stamps, is_new = self._compiled_steps.train(
            dispatched, stamped=stamped, noisy=noisy
        )
        took_s = time.perf_counter() - began_s
        is_first = is_new or self._functions.first_steps > known
        monitor.count(self._trained_steps, took_s, is_first=is_first)
        # The first run of a trace is slower: it does not count, so the next step is stamped.
        self._stamps_next = stamped and is_new
        if stamped and not is_new:
            monitor.note(
                self._trained_steps, stamps.numpy(), dispatched.shares, self._processes
            )
        return logs

    def _test_on(self, iterator: Iterator[Any]) -> Any:
        dispatched = self._next(iterator, "test")
        launched.reports.note_step()
        # A test step does not accumulate
        self._last_shares = BatchSplit(dispatched.shares.batches)
        return self._functions.test(dispatched)

    def _next(self, iterator: Iterator[Any], what: str) -> Dispatched:
        """The next batch to train or test on, after all that is done before a first one.

        Starts to bring the ones after it, but not while the step is still tried: what that finds
        decides how they are dispatched. Raises StopIteration.
        """
        # The feed deals by the split's shares, which a monitor may have changed.
        self._feed.split = self._split.shares
        self._feed.kind = what
        try:
            batch, dispatched = self._feed.take(iterator)
        except StopIteration:
            self._processes.compare_count(0)  # another process may go on
            if not self._is_built:
                raise BadInput(
                    "the data has no samples",
                    remedy="batch(…, drop_remainder=True) leaves out a batch that is not full: "
                    "leave it out; else look at what a filter or a take leaves, and at its files",
                ) from None
            raise
        self._processes.compare_count(dispatched.samples)
        self._processes.compare_batch(batch, self.model)
        self._note_inputs(batch, dispatched)
        if not self._is_built:
            self._build(batch, dispatched, trains=what == "train")
        elif what == "train" and self._warnings.wait_for_second_batch:
            self._warnings.of_other_batches(dispatched, rebalances=self._rebalances)
        if not self._is_tried(what, dispatched):
            if self._may_warn(what):
                self._try(what, batch, dispatched.shares)
                return self._feed.deal(batch)  # once more, by what that found
            return dispatched
        self._feed.look_ahead(iterator, max(AHEAD, self._in_a_row))
        return dispatched

    def _note_inputs(self, batch: Any, dispatched: Dispatched) -> None:
        """Keeps what inputs of another shape than those before are like, for an error to name."""
        if dispatched.shapes != self._shapes:
            self._shapes = dispatched.shapes
            self._inputs = tf.nest.map_structure(
                lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype),
                keras.utils.unpack_x_y_sample_weight(batch)[0],
            )

    def _is_tried(self, what: str, dispatched: Dispatched) -> bool:
        """Whether it is known how parts make a whole, or there is but one part."""
        has_parts = self._replicas.count > 1 or dispatched.shares.accumulates
        return not (has_parts and self._tries_left[what])

    def _may_warn(self, what: str) -> bool:
        """Whether trying the step may tell anything: not once the loss has made its weights NaN.

        Each try takes as long as the first step.
        """
        is_first = self._tries_left[what] == _TRIES
        return is_first or built.weights_are_finite(self.model)

    def _build(self, batch: Any, dispatched: Dispatched, *, trains: bool) -> None:
        """Does what Keras leaves to the first batch."""
        self._has_labels = isinstance(batch, tuple | list) and len(batch) > 1
        if self._has_labels:
            data_faults.refuse_text(self.model, *batch[:2])
        built.build(self.model, self._replicas.strategy, batch, trains=trains)
        self._is_built = True
        self._functions.awaits_lasting = self._rebalances
        if trains:
            # A checkpoint may have been restored.
            self._trained_steps = int(self.model.optimizer.iterations.numpy())
            self._warnings.of_another_model()
            self._warnings.of_batch_normalisation(xla=self._functions.xla)
            if self.monitor is not None:
                self.monitor.begin_with(dispatched.samples, self._trained_steps)
            self._warnings.of_other_batches(dispatched, rebalances=self._rebalances)

    @property
    def _rebalances(self) -> bool:
        """Whether the split may change while this call trains."""
        return self.monitor is not None and self.monitor.rebalances

    def _try(self, what: str, batch: Any, shares: BatchSplit) -> None:
        """Tries the step in parts on a batch, and on a few later ones while that does not tell.

        Raises BadInput for what a split can't train.
        """
        # Not the first device's share, which may be one sample: of so few a sum looks like a mean.
        largest = max(shares.micro_batches)
        combine_rules = self._functions.try_in_parts(what, batch, share=largest)
        if combine_rules.refused is not None:
            raise BadInput(
                combine_rules.refused.message, remedy=combine_rules.refused.remedy
            )
        if combine_rules.warned and not combine_rules.is_known:
            fault = self._fault_of_inputs()
            if fault is not None:
                raise fault
        self._tries_left[what] -= 1
        if combine_rules.is_known:
            self._tries_left[what] = 0
        self._feed.minimum = max(self._feed.minimum, combine_rules.minimum)
        for text in combine_rules.warned:
            fault = data_faults.of_class_number(text)
            if fault is not None:
                raise fault
            self._warnings.say(text)
        if what == "train":
            self._combine_rules = combine_rules
            combine_rules.refuse_small(shares.smallest, self.model)
            self._warnings.of_another_model(combine_rules.fingerprint)

    def _prepare(self, method: str, options: dict[str, Any]) -> None:
        """Checks model and data, brings the data into the split's batches, and warns of changes."""
        split = self._split
        trains = method == "fit"
        for text in built.check(self.model, trains=trains):
            self._warnings.say(text)
        if not split.is_first:
            quiet(options)
        data.check(options, self.model, devices=len(split.devices), trains=trains)
        if trains:
            self._warnings.say(
                measured.precision_mismatch_text(self.model, split.precision)
            )
            self._warnings.say(set_before_text(self.model))
            self._compiled_steps.begin(options)
            if self._has_weights():
                self._warnings.of_another_model()
        users_data = options["x"]
        self._warnings.begin(options)
        wanted = None if split.takes_any_batch else split.global_batch
        data.bring_into_batches(options, wanted, self.model)
        if trains and options["x"] is not users_data:
            steps = options.get("steps_per_epoch")
            size = split.global_batch
            self._warnings.say(data.regrouped_text(users_data, self.model, size, steps))
        if self._replicas.cluster is not None:
            # Otherwise a process would wait for ever for those that ended.
            end_together(method, options, self._processes)

    def _has_weights(self) -> bool:
        # The model's own `built` does not tell: build(shape) of a subclass sets it without creating
        # variables.
        return all(layer.built for layer in self.model._flatten_layers())

    def _make_optimizer(self) -> None:
        """Creates the optimizer's variables in the scope.

        A callback that restores them would create them outside it.
        """
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None and not optimizer.built and self._has_weights():
            with tracing_lock, self._replicas.strategy.scope():
                optimizer.build(self.model.trainable_variables)
