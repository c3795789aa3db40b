"""The traced functions of a model's steps: one trace of a kind serves every split and batch size.

What TensorFlow computes of a batch's size lies in the host's memory, and goes to a GPU and back in
the midst of a step. There it waits for all that is queued, the next batch's copy too. So on GPUs
batches of the usual size have a function of their own, in which these are constants.
"""

from __future__ import annotations

import functools
import math
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from gpubalance.engine.feed import Dispatched, PartWeights
from gpubalance.engine.keras_patches import called_flat
from gpubalance.engine.pace import PacedClock
from gpubalance.engine.replacing import tracing_lock
from gpubalance.engine.replicas import (
    Replicas,
    cached_on_replicas,
    seconds_of_one_more,
    seconds_of_sum,
    step_lock,
)
from gpubalance.engine.step import parity
from gpubalance.engine.step.logs import DeferredResults, read_when_asked
from gpubalance.engine.step.parity import check_sum
from gpubalance.engine.step.problems import refuse_uncompiled
from gpubalance.engine.step.several import SizedFunctions, StepFunction
from gpubalance.engine.step.step import StepKind, predicting, testing, training
from gpubalance.engine.step.trainable import as_first_traced, forget_first_trace
from gpubalance.errors import BadInput
from gpubalance.planning.sync import MIN_PACK_BYTES, best_pack_bytes
from gpubalance.results.combine_rules import UNTRIED, CombineRules
from gpubalance.settings.batch_split import BatchSplit

_FIRST_BYTES = 64 << 10
_TIMES_MORE = 8
# An all-reduce that takes so long tells how fast the link is.
_LONG_ENOUGH_S = 0.02


def pack_bytes_for(model: Any, replicas: Replicas) -> int:
    """Bytes of gradients to sum in one all-reduce; 0 for all, where none can hide behind compute.

    In a cluster all processes must call this together.
    """
    if any(isinstance(clock, PacedClock) for clock in replicas.clocks):
        return 0  # their gradients come all at once, when the profile's time is over
    gradient_bytes = 0
    for variable in model.trainable_variables:
        weight = variable.value
        gradient_bytes += math.prod(weight.shape) * weight.dtype.size
    if gradient_bytes <= MIN_PACK_BYTES:
        return 0
    latency_s, bytes_per_s = _link_of(replicas, gradient_bytes)
    return best_pack_bytes(gradient_bytes, latency_s, bytes_per_s)


@cached_on_replicas
def _link_of(replicas: Replicas, max_bytes: int) -> tuple[float, float]:
    """The seconds of one more all-reduce of a number, and the bytes per second of larger ones.

    It tries larger ones until one takes long enough to tell, up to `max_bytes`.
    """
    everywhere = tuple(range(replicas.count))
    seconds_of = partial(seconds_of_sum, replicas, everywhere)
    smallest_s = seconds_of(0)
    size = min(_FIRST_BYTES, max_bytes)
    took_s = seconds_of(size)
    while took_s < _LONG_ENOUGH_S and size < max_bytes:
        size = min(_TIMES_MORE * size, max_bytes)
        took_s = seconds_of(size)
    bytes_per_s = math.inf
    beyond_s = took_s - smallest_s
    if beyond_s > 0:
        bytes_per_s = size / beyond_s
    return seconds_of_one_more(replicas, everywhere), bytes_per_s


class TrainedStep(NamedTuple):
    """What `Functions.train` returns; `train_in_a_row` returns this for its last step."""

    logs: dict[str, Any]
    stamps: Any  # float64 [replicas, 4], noisy [replicas, 6]; None unless the step was stamped
    was_traced: bool  # in this call, so its stamps say nothing
    # Whether the call was slow because it was the first of its function, or with these shapes: see
    # `Functions.first_steps`. True if `was_traced`.
    is_first_run: bool


class _Outcome(NamedTuple):
    """What a call of a step's function gives."""

    returned: Any  # `TrainingResult`, `StepLogs`, or the outputs of `predict`
    deferred: DeferredResults
    was_traced: bool
    is_first_run: bool  # see `TrainedStep`


class Functions:
    """A model's steps on its replicas, each traced on first use."""

    def __init__(
        self,
        model: Any,
        replicas: Replicas,
        *,
        xla: bool = False,
    ) -> None:
        self._model = model
        self._replicas = replicas
        self.xla = xla
        # Whether a split may change soon: it gets functions of its sizes once it has lasted.
        self.defers_size_functions = False
        self._on_gpus = any("GPU" in name for name in replicas.names)
        self._combine_rules_of_all = {"train": UNTRIED, "test": UNTRIED}
        # By what they do, the structure of batches and the kind of step: the signature and the
        # function.
        self._traced: dict[tuple[str, str, StepKind], tuple[Any, StepFunction]] = {}
        # By the same the functions for usual shares alone.
        self._usual: dict[tuple[str, str, StepKind], SizedFunctions] = {}
        # By the same the shapes that its function has run with.
        self._ran: dict[tuple[str, str, StepKind], set[Any]] = {}
        # Steps that were traced, or the first of their function for such shapes: XLA compiles for
        # each, and cuDNN and oneDNN choose their algorithms by them
        self.first_steps = 0
        self._micro_batches = functools.lru_cache(maxsize=64)(_on_the_host)

    @functools.cached_property
    def pack_bytes(self) -> int:
        """How many bytes of gradients are summed in one all-reduce, 0 for all at once."""
        asked = self._replicas.summing.pack_bytes
        if asked is not None:
            return asked
        # A compiled part gives all gradients at once.
        if self.xla or self._replicas.count == 1:
            return 0
        with self.as_first_traced("train"):
            return pack_bytes_for(self._model, self._replicas)

    def as_first_traced(self, what: str) -> AbstractContextManager[None]:
        """Inside the block the model trains the layers that it did when a step was first traced."""
        return as_first_traced(self._model, what).restored()

    def trace_again(self, what: str) -> None:
        """Traces the steps of `train`, `test` or `predict` again, with what is trainable now."""
        forget_first_trace(self._model, what)
        self.__dict__.pop("pack_bytes", None)
        self.follow(what, UNTRIED)

    def give_up_xla(self) -> None:
        """Trains without XLA from now on."""
        self.xla = False
        self.__dict__.pop("pack_bytes", None)

    def try_in_parts(
        self, what: str, batch: Any, *, share: int = parity.TRIED_SAMPLES
    ) -> CombineRules:
        """Tries `train` or `test` on a batch, and follows what `parity.check` finds."""
        device = self._replicas.names[0]
        trains = what == "train"
        with tracing_lock, self.as_first_traced(what):
            found = parity.check(self._model, batch, device, share=share, trains=trains)
        self.follow(what, found)
        return found

    def follow(self, what: str, combine_rules: CombineRules) -> None:
        """Combines parts by what is known of `train` or `test` from now on."""
        self._combine_rules_of_all[what] = combine_rules
        self._traced = {
            key: traced for key, traced in self._traced.items() if key[0] != what
        }
        self._usual = {
            key: usual for key, usual in self._usual.items() if key[0] != what
        }

    def train(
        self,
        dispatched: Dispatched,
        *,
        stamped: bool = False,
        noisy: bool = False,
        compiled: bool = True,
    ) -> TrainedStep:
        """Trains on a batch.

        With XLA, unless this batch is not to be `compiled`. Raises ResourceExhaustedError if a
        device's memory does not hold it, and NotCompiled.
        """
        kind = self._kind_of_training(
            dispatched, stamped=stamped, noisy=noisy, compiled=compiled
        )
        self._refuse_beyond_memory(dispatched.shares.micro_batches)
        try:
            outcome = self._call("train", dispatched, kind)
        except tf.errors.InvalidArgumentError as error:
            refuse_uncompiled(error, self._model)
        result = outcome.returned
        return TrainedStep(
            read_when_asked(result.logs, outcome.deferred),
            result.stamps,
            outcome.was_traced,
            outcome.is_first_run,
        )

    def train_in_a_row(self, all_dispatched: list[Dispatched]) -> TrainedStep:
        """Trains on batches that are alike, without stamps, in one call."""
        first = all_dispatched[0]
        kind = self._kind_of_training(first)
        self._refuse_beyond_memory(first.shares.micro_batches)
        function, is_new = self._function_for("train", first, kind)
        is_new = is_new or not function.has_in_a_row(len(all_dispatched))
        key = "train", first.layout.like, kind
        is_first_run = self._note_first(key, first, is_new=is_new)
        in_a_row = function.in_a_row(len(all_dispatched))
        all_values = tuple(dispatched.values for dispatched in all_dispatched)
        result = self._called(in_a_row, all_values, first.shares)
        logs = read_when_asked(result.logs, function.deferred)
        return TrainedStep(logs, None, was_traced=is_new, is_first_run=is_first_run)

    def max_in_a_row(self, dispatched: Dispatched) -> int:
        """How many batches like this one a call should train on."""
        kind = self._kind_of_training(dispatched)
        function, _ = self._of_any_size("train", dispatched, kind)
        return function.max_for(dispatched)

    def _kind_of_training(
        self,
        dispatched: Dispatched,
        *,
        stamped: bool = False,
        noisy: bool = False,
        compiled: bool = True,
    ) -> StepKind:
        refused = self._combine_rules_of_all["train"].refused
        return StepKind(
            replicated=dispatched.replicated,
            micro=dispatched.shares.accumulates,
            stamped=stamped,
            noisy=stamped and noisy and not dispatched.replicated,
            xla=self.xla and compiled,
            unmodified=refused is not None and self._replicas.count == 1,
            pack_bytes=self.pack_bytes,
        )

    def _refuse_beyond_memory(self, sizes: tuple[int, ...]) -> None:
        """Raises for a simulated device before the step, in all processes of a cluster alike.

        Within the step TensorFlow would cancel the other devices' sum, and sometimes that of the
        next step too.
        """
        for clock, size in zip(self._replicas.clocks, sizes, strict=True):
            lack = clock.lacks(size)
            if lack:
                raise tf.errors.ResourceExhaustedError(None, None, lack)

    def test(self, dispatched: Dispatched) -> dict[str, Any]:
        """The logs of a batch in `evaluate`."""
        kind = StepKind(replicated=dispatched.replicated)
        outcome = self._call("test", dispatched, kind)
        return read_when_asked(outcome.returned, outcome.deferred)

    def predict(self, dispatched: Dispatched) -> Any:
        """The outputs for a batch, in the order of its samples."""
        kind = StepKind(replicated=dispatched.replicated)
        return self._call("predict", dispatched, kind).returned

    def _call(self, what: str, dispatched: Dispatched, kind: StepKind) -> _Outcome:
        function, is_new = self._function_for(what, dispatched, kind)
        key = what, dispatched.layout.like, kind
        is_first_run = self._note_first(key, dispatched, is_new=is_new)
        returned = self._called(function.once, dispatched.values, dispatched.shares)
        return _Outcome(returned, function.deferred, is_new, is_first_run)

    def _called(self, function: Any, values: Any, shares: BatchSplit) -> Any:
        arguments = values, self._micro_batches(shares.micro_batches)
        # Where what has no device of its own is put, as what is returned.
        with tf.device(self._replicas.names[0]), step_lock(self._replicas.strategy):
            return called_flat(function, arguments)

    def _function_for(
        self, what: str, dispatched: Dispatched, kind: StepKind
    ) -> tuple[StepFunction, bool]:
        """The function for such a batch, and whether it was traced now.

        It is traced again for a wider layout of batches than before, and optimised again for other
        usual shares that last.
        """
        function, is_new = self._of_any_size(what, dispatched, kind)
        if dispatched.is_usual and self._on_gpus:
            key = what, dispatched.layout.like, kind
            if key not in self._usual:
                make = partial(self._for_these, dispatched.layout.signature, function)
                self._usual[key] = SizedFunctions(make)
            sized, runs_first = self._usual[key].of(
                dispatched.shares, defers_size_functions=self.defers_size_functions
            )
            function = sized or function
            is_new = is_new or runs_first
        return function, is_new

    def _of_any_size(
        self, what: str, dispatched: Dispatched, kind: StepKind
    ) -> tuple[StepFunction, bool]:
        """The function for batches of any size, and whether it was traced now."""
        signature = dispatched.layout.signature
        key = what, dispatched.layout.like, kind
        is_new = key not in self._traced or self._traced[key][0] is not signature
        if is_new:
            with tracing_lock, self.as_first_traced(what):
                self._traced[key] = signature, self._trace(what, kind, signature)
            self._usual.pop(key, None)
        _, function = self._traced[key]
        return function, is_new

    def _note_first(
        self, key: tuple[str, str, StepKind], dispatched: Dispatched, *, is_new: bool
    ) -> bool:
        """Counts the step if it is the first of its function with such shapes, and returns that."""
        if is_new or key not in self._ran:
            self._ran[key] = set()
        shapes = dispatched.shapes, dispatched.shares
        is_first = shapes not in self._ran[key]
        if is_first:
            self._ran[key].add(shapes)
            self.first_steps += 1
        return is_first

    def _trace(self, what: str, kind: StepKind, signature: Any) -> StepFunction:
        """The traced function.

        The concrete one: a tf.function takes half a millisecond to find its only trace.
        """
        replicas = self._replicas
        values = (
            (signature, tf.TensorSpec((len(PartWeights._fields),), tf.float64)),
        ) * len(replicas.names)
        micro_batches = tf.TensorSpec((replicas.count,), tf.int32)
        # Whoever reads a log in one process of a cluster can't wait for the others.
        devices = () if replicas.cluster else replicas.names
        deferred = DeferredResults(self._model, devices)
        step = tf.function(
            self._step(what, kind, deferred),
            input_signature=[values, micro_batches],
            autograph=False,
        )
        try:
            with tracing_lock:
                return StepFunction(step.get_concrete_function(), deferred)
        except Exception as error:
            # Of a variable that is made while a step is traced.
            if type(error).__name__ != "UnliftableError":
                raise
            raise BadInput(
                f"the model {self._model.name} creates a variable in its first step, as "
                "keras.random without a seed does",
                remedy="create it before that step: seed = "
                "keras.random.SeedGenerator(1), and draw with seed=seed",
            ) from error

    def _for_these(
        self, signature: Any, function: StepFunction, shares: BatchSplit
    ) -> StepFunction:
        """The traced function for shares of these sizes only, without tracing the model again."""
        values = []
        for batch in shares.batches[self._replicas.own_slice]:
            spec = tf.nest.map_structure(partial(_of_size, batch), signature)
            values.append(
                (spec, tf.TensorSpec((len(PartWeights._fields),), tf.float64))
            )
        micro_batches = tf.TensorSpec((self._replicas.count,), tf.int32)
        sized = tf.function(
            lambda *arguments: function.once(*arguments),
            input_signature=[tuple(values), micro_batches],
            autograph=False,
        )
        with tracing_lock:
            return StepFunction(
                sized.get_concrete_function(), function.deferred, function.operations
            )

    def _step(self, what: str, kind: StepKind, deferred: DeferredResults) -> Any:
        if what == "predict":
            return predicting(self._model, self._replicas, replicated=kind.replicated)
        if what == "test":
            combine_rules = self._combine_rules_of_all["test"]
            return testing(
                self._model,
                self._replicas,
                combine_rules,
                deferred,
                replicated=kind.replicated,
            )
        if self._replicas.count > 1:
            check_sum(self._replicas)
        return training(
            self._model,
            self._replicas,
            self._combine_rules_of_all["train"],
            kind,
            deferred,
        )


def _on_the_host(micro_batches: tuple[int, ...]) -> Any:
    """The sizes as a tensor where loops over micro-batches need them."""
    with tf.device("/CPU:0"):
        return tf.constant(micro_batches, tf.int32)


def _of_size(batch: int, spec: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec([batch, *spec.shape[1:]], spec.dtype)
