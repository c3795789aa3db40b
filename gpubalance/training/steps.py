"""Keras' train, test and predict functions, over replicas whose batches differ.

Keras' `fit` handles global batches as on one device, and calls one of these functions for each. The
function divides the batch among the devices and calls the step for it: see engine/step/step.py.
"""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from gpubalance.engine import data_faults
from gpubalance.engine.datasets import cleaned
from gpubalance.engine.feed import AHEAD, Dispatched, Feed
from gpubalance.engine.iterators import Batches
from gpubalance.engine.replacing import tracing_lock
from gpubalance.engine.step import built
from gpubalance.engine.step.several import are_equal
from gpubalance.engine.users_errors import own_code_named
from gpubalance.errors import BadInput, OutOfMemory
from gpubalance.results.combine_rules import UNTRIED
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.training import data, measured
from gpubalance.training.called_function import set_before_text
from gpubalance.training.compiled import CompiledSteps
from gpubalance.training.device_split import DeviceSplit
from gpubalance.training.keras_functions import KerasFunctions
from gpubalance.training.launched import reports
from gpubalance.training.memory import out_of_memory, ran_out
from gpubalance.training.processes import Processes, end_together, quiet
from gpubalance.training.scope import own_metric_text, refuse_another_scope
from gpubalance.training.step_warnings import StepWarnings

# While the parity check can't decide, it is tried on this many batches of a model at most.
_PARITY_TRIES = 4
# What losses and metrics raise for labels that are None.
_MISSING_LABELS_ERROR = re.compile("None values not supported|'NoneType' object")


class Steps(KerasFunctions):
    """The functions for one model and a split, traced on first use.

    The base class brings Keras to call `train`, `test` and `predict` of this class, in the block
    `called_by_keras`. It calls `trace_again` when a script makes one of these functions anew by
    force, as `model.make_train_function(force=True)` does. `monitor` is the Monitor callback of the
    `fit` that is running, or None; the Monitor sets it when `fit` begins.
    """

    def __init__(self, split: DeviceSplit, model: Any) -> None:
        super().__init__(model)
        # Weak: the model keeps its Steps alive, and its Steps must not keep the split alive. During
        # a call the caller keeps the split alive.
        self._split: DeviceSplit = weakref.proxy(split)
        self._replicas = split.replicas
        self._feed = Feed(self._replicas, split.shares)
        self._processes = Processes(self._replicas)
        self._warnings = StepWarnings(self._split, model)
        self._compiled_steps = CompiledSteps(
            self._split, model, self._warnings.warn_once
        )
        self._functions = self._compiled_steps.functions
        # 0 once the check has decided, or its tries are used up.
        self._parity_tries_left = {"train": _PARITY_TRIES, "test": _PARITY_TRIES}
        self._combine_rules = UNTRIED  # of training; until its parity check has run
        # The optimizer's iteration count. Every `monitor.every`-th step is stamped.
        self._trained_steps = 0
        # Whether the next step is stamped because the stamps of the last one do not count.
        self._restamp = False
        self._method = ""  # `fit`, `evaluate` or `predict`
        # Of the latest batch: its shapes, and TensorSpecs of its inputs for an error to name.
        self._shapes: Any = None
        self._input_specs: Any = None
        self._reset_call()

    def _reset_call(self) -> None:
        """Forgets what the first batches of the last call showed."""
        self._is_built = False
        self._has_labels = True
        self._last_shares: BatchSplit | None = None  # of the last step that began
        self._max_steps_per_graph_call = 1

    def call(self, method: Callable[..., Any], options: dict[str, Any]) -> Any:
        """Calls Keras' method, with the data in the split's batches."""
        name = method.__name__
        # The feed takes the batches of `fit` and `evaluate` ahead of time. Keras itself takes those
        # of `predict`, so another thread must read a generator ahead.
        self.reads_generators_ahead = name == "predict"
        self._method = name
        refuse_another_scope(self.model, self._replicas.strategy, name)
        self._prepare(name, options)
        self._reset_call()
        self._feed.begin()
        self._make_optimizer()
        # Without the optimizer's part the text would come once more, with it.
        if name == "fit" and self._has_weights():
            self._warnings.warn_if_not_the_planned_model()
        try:
            self._processes.compare_sizes(data.sizes(options))
            with (
                own_code_named(f"{name} of the model {self.model.name}"),
                self.called_by_keras(options),
                reports.of_call(name, options),
            ):
                result = method(self.model, **options)
            if name == "fit":
                history = getattr(result, "history", {})
                self._warnings.warn_of_no_finite_loss(history)
            return result
        except tf.errors.OpError as error:
            if ran_out(error):
                raise self._out_of_memory(error, trains=name == "fit") from error
            # The text of an error that a graph raises is a hundred lines: it is replaced.
            if isinstance(error, tf.errors.InvalidArgumentError):
                raise data_faults.of_graph(
                    error,
                    self.model,
                    name,
                    self._input_specs,
                    validates=self._validates,
                ) from None
            raise
        except (AttributeError, ValueError) as error:
            fault = data_faults.of_labels(error)
            if fault is not None:
                raise fault from None
            if self._has_labels or not _MISSING_LABELS_ERROR.search(str(error)):
                raise
            raise data_faults.no_labels() from error
        finally:
            self._feed.stop()
            self.monitor = None

    @property
    def _validates(self) -> bool:
        """Whether the latest batch is of `fit`'s validation_data."""
        return self._method == "fit" and self._feed.purpose == "test"

    def _out_of_memory(self, error: BaseException, *, trains: bool) -> OutOfMemory:
        split = self._split
        # If no step has begun, the first batch did not fit while it was dispatched.
        failing_shares = self._last_shares or self._feed.last_shares
        monitor = self.monitor
        return out_of_memory(
            error,
            self._replicas,
            split.devices,
            None if split.takes_any_batch else split.shares,
            failing_shares,
            trains=trains,
            changes=monitor.changes if monitor is not None else (),
        )

    def trace_again(self, what: str) -> None:
        """Traces the steps of `train`, `test` or `predict` again, with the layers trainable now.

        The parity check of these steps runs again, too.
        """
        self._compiled_steps.trace_again(what)
        if what in self._parity_tries_left:
            self._parity_tries_left[what] = _PARITY_TRIES

    def predict(self, batches: Sequence[Any]) -> Any:
        """The outputs for all samples of some batches, in their order."""
        reports.note_step()
        self._feed.purpose = "predict"
        outputs = []
        for batch in batches:
            dispatched = self._feed.deal(cleaned(batch))
            self._remember_input_specs(batch, dispatched)
            outputs.append(self._functions.predict(dispatched))
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)

    def train(self, iterator: Iterator[Any]) -> Any:
        """Trains `steps_per_execution` steps, several in one graph call where that is worth it.

        Keras' `fit` calls this. It returns the last step's logs, and raises StopIteration without
        data.
        """
        logs = None
        steps_left = self.model.steps_per_execution
        while steps_left:
            maximum = self._steps_in_next_call(steps_left)
            batches = self._next_batches(iterator, maximum)
            if not batches:
                break
            steps_left -= len(batches)
            logs = self._train_on(batches)
            # The parity check runs on the first batches. `_max_steps` returns 1 until the check is
            # over. So ask again after each call, as long as the answer is 1.
            if steps_left and self._max_steps_per_graph_call == 1:
                self._max_steps_per_graph_call = self._max_steps(iterator, batches[-1])
        if logs is None:
            raise StopIteration
        return logs

    def _next_batches(self, iterator: Iterator[Any], maximum: int) -> list[Dispatched]:
        """The next `maximum` batches; fewer at the end of the data."""
        batches: list[Dispatched] = []
        try:
            while len(batches) < maximum:
                batches.append(self._next_batch(iterator, "train"))
        except StopIteration:
            pass
        return batches

    def _train_on(self, batches: list[Dispatched]) -> Any:
        """Trains on batches in order, in one graph call if one function takes all of them."""
        if len(batches) > 1 and are_equal(batches):
            return self._train_in_one_call(batches)
        logs = None
        for dispatched in batches:
            logs = self._train_on_one(dispatched)
        return logs

    def _max_steps(self, iterator: Iterator[Any], dispatched: Dispatched) -> int:
        """How many steps on batches like `dispatched` one graph call may have."""
        if not self._parity_check_is_over("train", dispatched):
            return 1
        # The processes of a cluster must make the same calls.
        if self._replicas.cluster is not None:
            return 1
        # `Batches` are those of a tf.data dataset. A user's generator is another iterator: it must
        # not be asked for batches before they are needed.
        if not isinstance(iterator, Batches):
            return 1
        return self._compiled_steps.max_in_a_row(dispatched)

    def _steps_in_next_call(self, steps_left: int) -> int:
        """How many of the steps left the next graph call has.

        1. A stamped step has a call of its own.
        2. The number is a power of two, because each number of steps takes a function of its own.

        If a call may have 8 steps and every 6th is stamped, the first 6 take calls of 4, 1 and 1.
        """
        maximum = min(steps_left, self._max_steps_per_graph_call)
        if self.monitor is not None:
            every = self.monitor.every
            steps_before_next_stamp = every - self._trained_steps % every - 1
            if self._restamp:
                steps_before_next_stamp = 0
            maximum = max(1, min(maximum, steps_before_next_stamp))
        return 1 << (maximum.bit_length() - 1)

    def _train_in_one_call(self, batches: list[Dispatched]) -> Any:
        """Trains on batches that are alike in one graph call, without stamps."""
        for dispatched in batches:
            self._begin_training_step(dispatched)
        began_s = time.perf_counter()
        result = self._functions.train_in_a_row(batches)
        if self.monitor is not None:
            took_s = time.perf_counter() - began_s
            # A first call takes most of its time to make the function. So all of it counts as the
            # time of one step.
            step_s = took_s if result.is_first_run else took_s / len(batches)
            # The monitor takes the number of the call's last step, and the seconds of one step.
            self.monitor.note_any_step(
                self._trained_steps, step_s, is_first=result.is_first_run
            )
        return result.logs

    def _begin_training_step(self, dispatched: Dispatched) -> None:
        """Counts and reports a step. Raises BadInput for micro-batches that are too small."""
        self._last_shares = dispatched.shares
        reports.note_step(trains=True)
        # A device's first micro-batch may have fewer samples than the others.
        if self._split.shares.accumulates and not dispatched.replicated:
            self._combine_rules.refuse_small(dispatched.shares.smallest, self.model)
        self._trained_steps += 1

    def _train_on_one(self, dispatched: Dispatched) -> Any:
        """Trains a step, stamped if the monitor needs that."""
        self._begin_training_step(dispatched)
        monitor = self.monitor
        if monitor is None:
            return self._compiled_steps.train(dispatched).logs
        is_stamped = self._restamp or self._trained_steps % monitor.every == 0
        began_s = time.perf_counter()
        result = self._compiled_steps.train(
            dispatched,
            stamped=is_stamped,
            noisy=bool(monitor.noise),  # the stamps then have the gradients' norms too
        )
        took_s = time.perf_counter() - began_s
        monitor.note_any_step(self._trained_steps, took_s, is_first=result.is_first_run)
        # The stamps of a call that traced the step do not count, so the next step is stamped.
        # (`is_first_run` is also true of a traced step's first run with new shapes.)
        self._restamp = is_stamped and result.was_traced
        if is_stamped and not result.was_traced:
            stamps = result.stamps.numpy()
            monitor.note_stamped_step(
                self._trained_steps, stamps, dispatched.shares, self._processes
            )
        return result.logs

    def _test_on(self, iterator: Iterator[Any]) -> Any:
        """One step of `evaluate`; `test` of the base class calls this for each step."""
        dispatched = self._next_batch(iterator, "test")
        reports.note_step()
        # A test step takes each device's batch in one piece, never in micro-batches.
        self._last_shares = BatchSplit(dispatched.shares.batches)
        return self._functions.test(dispatched)

    def _next_batch(self, iterator: Iterator[Any], what: str) -> Dispatched:
        """The next batch to `train` or `test` on, dispatched. Raises StopIteration.

        1. On a call's first batch it builds the model.
        2. While the parity check is not over, it runs the check on the batch. Then it dispatches
           the batch anew, because the check may ask for larger parts.
        3. Once the check is over, the feed brings the next batches to the devices while this one
           is computed. The check is over when it has decided, when its four tries are used up, or
           if there is but one part.
        """
        # The monitor may have changed the split's shares.
        self._feed.split = self._split.shares
        self._feed.purpose = what
        try:
            batch, dispatched = self._feed.take(iterator)
        except StopIteration:
            self._processes.compare_count(0)  # raises if another process has a batch
            if not self._is_built:
                raise BadInput(
                    "the data has no samples",
                    remedy="batch(…, drop_remainder=True) drops an incomplete batch: "
                    "leave it out; otherwise check what filter and take keep, and the "
                    "files",
                ) from None
            raise
        self._processes.compare_count(dispatched.samples)
        self._processes.compare_batch(batch, self.model)
        self._remember_input_specs(batch, dispatched)
        if not self._is_built:
            self._build(batch, dispatched, trains=what == "train")
        elif what == "train" and self._warnings.first_batch_may_be_short:
            # The first batch had too few samples, like a last batch that was shuffled to the front.
            # This second batch shows whether the data has the split's global batch.
            self._warn_of_other_batches(dispatched)
        if self._parity_check_is_over(what, dispatched):
            ahead = max(AHEAD, self._max_steps_per_graph_call)
            self._feed.look_ahead(iterator, ahead)
            return dispatched
        if self._parity_check_may_decide(what):
            self._check_parity(what, batch, dispatched.shares)
            return self._feed.deal(batch)
        return dispatched

    def _remember_input_specs(self, batch: Any, dispatched: Dispatched) -> None:
        """Remembers the TensorSpecs of inputs of a new shape, for an error to name."""
        if dispatched.shapes != self._shapes:
            self._shapes = dispatched.shapes
            self._input_specs = data_faults.input_specs(batch)

    def _parity_check_is_over(self, what: str, dispatched: Dispatched) -> bool:
        """Whether batches like `dispatched` need no more parity check, or will get none."""
        has_parts = self._replicas.count > 1 or dispatched.shares.accumulates
        return not (has_parts and self._parity_tries_left[what])

    def _parity_check_may_decide(self, what: str) -> bool:
        """Whether one more parity check may decide.

        A check can't decide once a loss of NaN has made the weights NaN. It takes as long as the
        first step, so none is run then.
        """
        is_first_try = self._parity_tries_left[what] == _PARITY_TRIES
        return is_first_try or built.weights_are_finite(self.model)

    def _build(self, batch: Any, dispatched: Dispatched, *, trains: bool) -> None:
        """Does what Keras does on a call's first batch, and warns of what that batch shows."""
        self._has_labels = isinstance(batch, tuple | list) and len(batch) > 1
        if self._has_labels:
            data_faults.refuse_text(self.model, *batch[:2])
        strategy = self._replicas.strategy
        built.build(self.model, strategy, batch, trains=trains)
        self._is_built = True
        if self._replicas.cluster is not None:
            self._warnings.warn_once(own_metric_text(self.model, strategy))
        # A function for batches of one size is faster, but takes seconds to make. If the split may
        # change, such a function is made only for shares that have lasted for some seconds.
        self._functions.defers_size_functions = self._rebalances
        if trains:
            # The optimizer counts on from a checkpoint that the user restored.
            self._trained_steps = int(self.model.optimizer.iterations.numpy())
            self._warnings.warn_if_not_the_planned_model()
            self._warnings.warn_of_batch_normalisation(xla=self._functions.xla)
            if self.monitor is not None:
                self.monitor.note_first_batch(dispatched.samples, self._trained_steps)
            self._warn_of_other_batches(dispatched)

    @property
    def _rebalances(self) -> bool:
        """Whether the split may change while this call trains."""
        return self.monitor is not None and self.monitor.rebalances

    def _warn_of_other_batches(self, dispatched: Dispatched) -> None:
        self._warnings.warn_of_other_batches(dispatched, rebalances=self._rebalances)

    def _check_parity(self, what: str, batch: Any, shares: BatchSplit) -> None:
        """Runs the parity check on a batch, and follows what it finds.

        Raises BadInput for a model or data that a split can't train.
        """
        # The check tries parts of the largest size: a part of one sample does not tell a sum from a
        # mean.
        largest = max(shares.micro_batches)
        combine_rules = self._functions.try_in_parts(what, batch, share=largest)
        if combine_rules.refused is not None:
            raise BadInput(
                combine_rules.refused.message, remedy=combine_rules.refused.remedy
            )
        check_failed = combine_rules.warned and not combine_rules.is_known
        if check_failed:
            # Inputs of a wrong shape may be the cause: then say so, before the step itself fails.
            fault = data_faults.of_inputs(
                self.model, self._input_specs, validates=self._validates
            )
            if fault is not None:
                raise fault
        self._parity_tries_left[what] -= 1
        if combine_rules.is_known:
            self._parity_tries_left[what] = 0
        self._feed.minimum = max(self._feed.minimum, combine_rules.minimum)
        for text in combine_rules.warned:
            fault = data_faults.of_label_outside_classes(text)
            if fault is not None:
                raise fault
            self._warnings.warn_once(text)
        if what == "train":
            if shares.accumulates:
                for text in combine_rules.warned_with_micro_batches:
                    self._warnings.warn_once(text)
            self._combine_rules = combine_rules
            combine_rules.refuse_small(shares.smallest, self.model)
            # Only the check has counted the step's operations by type. The fingerprint is these
            # counts, to compare with those of the plan's step.
            self._warnings.warn_if_not_the_planned_model(combine_rules.fingerprint)

    def _prepare(self, method: str, options: dict[str, Any]) -> None:
        """Checks model and data, and replaces the data in `options` by batches of the split.

        Warns of data that is regrouped.
        """
        split = self._split
        trains = method == "fit"
        warn = self._warnings.warn_once  # does nothing if the text is empty
        for text in built.check(self.model, trains=trains):
            warn(text)
        is_first_process = split.is_first
        if not is_first_process:
            quiet(options)
        data.check(options, self.model, devices=len(split.devices), trains=trains)
        if trains:
            warn(measured.precision_mismatch_text(self.model, split.precision))
            warn(set_before_text(self.model))
            self._compiled_steps.begin(options)
        users_data = options["x"]
        self._warnings.begin(options)
        # A split made of ratios divides batches of any size, so the data keeps its own batches.
        global_batch = None if split.takes_any_batch else split.global_batch
        data.bring_into_batches(options, global_batch, self.model)
        if trains and options["x"] is not users_data:
            steps = options.get("steps_per_epoch")
            size = split.global_batch
            warn(data.regrouped_text(users_data, self.model, size, steps))
        if self._replicas.cluster is not None:
            # Else, if a callback ended one process, the others would wait for it for ever.
            end_together(method, options, self._processes, self.model)

    def _has_weights(self) -> bool:
        """Whether all layers are built.

        The model's own `built` may be true earlier: build(shape) of a subclass sets `built` without
        creating variables.
        """
        return all(layer.built for layer in self.model._flatten_layers())

    def _make_optimizer(self) -> None:
        """Creates the optimizer's variables in the strategy's scope.

        Otherwise a callback that restores them would create them outside the scope.
        """
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None and not optimizer.built and self._has_weights():
            with tracing_lock, self._replicas.strategy.scope():
                optimizer.build(self.model.trainable_variables)
