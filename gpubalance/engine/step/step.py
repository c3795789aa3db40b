"""A step of one kind (train, test or predict), traced as one graph over all replicas.

Every replica runs the model's own `train_step` on its part of the batch; the results sum to those
of one device (see weighing.py). What is measured and what is trained is this step.

`training`, `testing` and `predicting` return a function `step(values, micro_batches)`, which
functions.py traces:
- `values` are, for each replica of this process, its data, and how much its samples count in the
  global mean loss (`feed.PartWeights` as a vector), both on its device;
- `micro_batches` are the sizes of the micro-batches of all replicas, int32 [replicas], on the host.

Nothing comes to a device or leaves it in the middle of a step, because that would wait for all that
is queued there. So the logs stay on the first device until somebody reads them.

Three objects handle what is not a gradient:
- `State` has the variables that a step changes without gradients. Those of layers, such as moving
  averages, change by the sum of all parts' shares, so they are equal on all replicas. Those of
  metrics stay each replica's own.
- `Logs` takes the logs that `train_step` or `test_step` returns for each part. It makes those of
  the whole batch from sums over all parts and replicas.
- `deferred`, a `DeferredResults`, has the logs that are computed only when somebody reads them:
  results of metrics whose state is too large to sum in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import keras
import tensorflow as tf

from gpubalance.engine.feed import PartWeights
from gpubalance.engine.keras_patches import taking_keys_at_once
from gpubalance.engine.replicas import Replicas
from gpubalance.engine.step.gradients import (
    PartResult,
    by_rows,
    gradients_of,
    inlining_tf_functions,
    optimizer_applies_without_summing,
    over_micro_batches,
    refuse_what_cannot_accumulate,
    summable,
    taking_gradients,
)
from gpubalance.engine.step.logs import DeferredResults, Logs, StepLogs
from gpubalance.engine.step.part import PartReplacements, part_of
from gpubalance.engine.step.points import FINISHED, SUMMED, Points, number_of_replica
from gpubalance.engine.step.problems import refuse_what_cannot_compile
from gpubalance.engine.step.state import State, metric_values
from gpubalance.engine.step.sums import (
    batch_of,
    cast_back,
    cast_to_send,
    loss_scale,
    one_vector,
    over_replicas,
    split_vector,
    squared_norm,
    with_norms,
)
from gpubalance.engine.step.weighing import weighing
from gpubalance.results.combine_rules import CombineRules

# The (data, `PartWeights` as a vector) of each replica of this process.
LocalValues: TypeAlias = Sequence[tuple[Any, tf.Tensor]]


@dataclass(frozen=True)
class StepKind:
    """What a step is traced for. Steps of `evaluate` and `predict` use `replicated` only."""

    # The batch has too few samples to divide, so each replica computes all of it: see
    # `feed.Dispatched`.
    replicated: bool = False
    micro: bool = False  # each replica computes its batch in micro-batches
    stamped: bool = False  # returns `TrainingResult.stamps`
    # The stamps have two columns more, Σ‖h‖²/b over a replica's parts and ‖g‖². h is the gradient
    # of one part of b samples, g that of the whole batch. planning/noise.py computes the noise
    # scale from both.
    noisy: bool = False
    xla: bool = False  # XLA compiles the step of a part
    # Runs the user's `train_step` unchanged: for a model that the parity check refused, on one
    # device.
    unmodified: bool = False
    pack_bytes: int = 0  # of gradients in one all-reduce; 0 sums all at once


class TrainingResult(NamedTuple):
    """What a training step returns."""

    logs: StepLogs
    # Float64 [replicas, 4], or [replicas, 6] if noisy; None unless stamped. The seconds at which a
    # replica began to compute, had its own gradients, had their sum over all replicas, and had
    # updated its weights.
    stamps: Any


class _PartNumbers(NamedTuple):
    """What a part adds to sums over all parts and replicas, beside its gradients."""

    # ‖h‖²/b of the part, a float32 scalar; 0 unless the step is noisy
    part_squares: Any
    state_changes: list[Any]  # of layers' variables, see `State.shares`
    log_shares: list[Any]  # the part's shares of the logs, see `Logs.of_part`

    def packed(self) -> Any:
        """All numbers in the order of the fields, as one vector: float32 or float64."""
        return one_vector([self.part_squares, *self.state_changes, *self.log_shares])


class _SummedNumbers(NamedTuple):
    """What the replicas' vectors sum to: packed `_PartNumbers`, then the metrics' state."""

    state_changes: list[Any]  # of layers' variables, by the whole batch
    # Still a vector: the sums of `log_shares`, then the metrics' state that
    # `Logs.with_metric_state` appended. `Logs.of_whole_batch` takes this vector.
    log_totals: Any

    @classmethod
    def unpacked(cls, vector: Any, state_shapes: Sequence[Any]) -> _SummedNumbers:
        """The numbers in a summed vector, but for `part_squares`, whose sum nobody needs."""
        shapes = [(), *state_shapes, (-1,)]
        _, *state_changes, log_totals = split_vector(vector, shapes)
        return cls(state_changes, log_totals)


def training(
    model: Any,
    replicas: Replicas,
    combine_rules: CombineRules,
    kind: StepKind,
    deferred: DeferredResults,
) -> Callable[..., TrainingResult]:
    """A step that trains.

    `Logs` fills `deferred` while the first part of a batch is traced. From then on
    `deferred.unsummed` has the metrics' variables that a step doesn't sum.
    """
    if kind.micro:
        refuse_what_cannot_accumulate(model)
    if kind.xla:
        refuse_what_cannot_compile(model)

    def step(values: LocalValues, micro_batches: tf.Tensor) -> TrainingResult:
        logs = Logs(model, deferred)
        local_results = replicas.strategy.experimental_local_results
        replacements = replacements_for_parts(
            model, takes_gradients=not kind.unmodified
        )

        def on_replica(
            values: LocalValues, micro_batches: tf.Tensor
        ) -> tuple[Any, Any, Any]:
            replica = _Replica(model, replicas, replacements, combine_rules, kind, logs)
            log_totals, stamps = replica.step(values, micro_batches)
            # Each replica returns its own values of the metrics' variables that are not summed.
            return log_totals, stamps, metric_values(deferred.unsummed)

        applying = (
            nullcontext() if kind.unmodified else optimizer_applies_without_summing()
        )
        # The replicas find each other in a sum by TensorFlow's collective keys. Capturing the keys
        # of all sums and devices at once saves a call some 50 µs for each further sum of a device,
        # and 15 µs for each further device.
        with applying, taking_keys_at_once():
            log_totals, stamps, unsummed = replicas.strategy.run(
                on_replica, (values, micro_batches)
            )
        # All replicas have the same totals.
        first_log_totals = local_results(log_totals)[0]
        with tf.device(replicas.names[0]):
            step_logs = logs.of_whole_batch(
                first_log_totals, [local_results(state) for state in unsummed]
            )
        if not kind.stamped:
            return TrainingResult(step_logs, None)
        local_stamps = local_results(stamps)
        with tf.device("/CPU:0"):
            if replicas.cluster is not None:  # each replica has the stamps of all
                return TrainingResult(step_logs, local_stamps[0])
            return TrainingResult(step_logs, tf.stack(local_stamps))

    return step


class _Replica:
    """One replica's training step, while it is traced."""

    def __init__(
        self,
        model: Any,
        replicas: Replicas,
        replacements: PartReplacements,
        combine_rules: CombineRules,
        kind: StepKind,
        logs: Logs,
    ) -> None:
        self._model = model
        self._replicas = replicas
        self._replacements = replacements
        self._combine_rules = combine_rules
        self._kind = kind
        self._logs = logs
        self._state = State(
            model, combine_rules, replicated=kind.replicated, micro=kind.micro
        )

    def step(self, values: LocalValues, micro_batches: tf.Tensor) -> tuple[Any, Any]:
        """Trains on the replica's samples; returns (log totals, stamps).

        The log totals are those of `_SummedNumbers`. The stamps are this replica's row of
        `TrainingResult.stamps`, in a cluster the rows of all replicas.
        """
        kind = self._kind
        replica_number = number_of_replica()
        data, packed_weights = values[replica_number - self._replicas.first_own]
        weights = PartWeights(
            batch=packed_weights[0],
            first_micro_batch=packed_weights[1],
            other_micro_batch=packed_weights[2],
        )
        batch = batch_of(data)
        micro_batch = micro_batches[replica_number] if kind.micro else batch
        clock = self._replicas.clocks[replica_number]
        points = Points(clock, batch, micro_batch, stamped=kind.stamped, xla=kind.xla)
        with points.begin(data) as data:
            if kind.micro:
                own = over_micro_batches(self._run_part, data, weights, micro_batch)
            else:
                own = self._run_part(data, weights.batch)
        own_vector = self._logs.with_metric_state([own.packed_numbers])
        grads_to_send = cast_to_send(own.grads, self._replicas.summing.gradients)
        own_values = [own_vector, *grads_to_send]
        part_squares = own.packed_numbers[0]  # summed over the replica's parts
        # At each point the clock waits for a marker that is computed from a scalar on this device.
        # Any float scalar there will do.
        to_sum = points.computed(own_values, device_scalar=part_squares)
        sums = over_replicas(to_sum, kind.pack_bytes)
        summed_vector, *received = points.summed(sums, device_scalar=part_squares)
        summed_grads = cast_back(received, own.grads)
        # The loss scale of these gradients, read before `apply` changes it.
        scale = loss_scale(self._model.optimizer) if kind.noisy else None
        if own.variables:
            # A gradient with the same rows in every part, such as that of an embedding of
            # positions, was summed without its rows' indices. They are put back here.
            grads = by_rows(summed_grads, own.row_forms)
            self._model.optimizer.apply(grads, own.variables)
        summed = _SummedNumbers.unpacked(summed_vector, self._state.shapes)
        self._state.set(summed.state_changes)
        stamps = points.finished(own.variables, device_scalar=weights.batch)
        if kind.noisy:
            # The norms are computed after the last stamp, so that no stamped time includes them.
            with tf.control_dependencies([stamps]):
                squares = tf.cast(part_squares, tf.float32)
                stamps = with_norms(stamps, squares, summed_grads, scale)
        if kind.stamped and self._replicas.cluster is not None:
            stamps = _stamps_of_cluster(stamps)
        return summed.log_totals, stamps

    def _run_part(self, data: Any, weight: Any) -> PartResult:
        """Computes a part: the replica's batch, or one of its micro-batches.

        `weight` is how much the part counts in the global mean loss, a float64 scalar.
        """
        if not self._kind.xla:
            return self._traced_part(data, weight)
        traced: list[PartResult] = []

        def compiled_part(data: Any, weight: Any) -> tuple[Any, ...]:
            """The tensors of a part that are needed outside of XLA's function."""
            part = self._traced_part(data, weight)
            traced.append(part)
            # Values of variables before this step, which the logs need.
            reads_before_apply = self._logs.reads_before_apply()
            return part.packed_numbers, part.grads, part.row_forms, reads_before_apply

        compiled = tf.function(compiled_part, jit_compile=True, autograph=False)
        packed_numbers, grads, row_forms, reads_before_apply = compiled(data, weight)
        self._logs.note_reads_before_apply(reads_before_apply)
        # A compiled function returns tensors only, so the variables come from its trace.
        return PartResult(packed_numbers, grads, row_forms, traced[0].variables)

    def _traced_part(self, data: Any, weight: Any) -> PartResult:
        """Runs the model's `train_step` on the data of a part."""
        kind = self._kind
        # From the second micro-batch on, this restores the layers' variables, and the weights that
        # `note_changes` noted, to their values before the step.
        self._state.begin()
        with part_of(
            weight,
            self._replacements,
            self._combine_rules,
            replicated=kind.replicated,
            micro=kind.micro,
            compiled=kind.xla,
        ) as part:
            logs = self._model.train_step(data)
            grads: list[Any] = []
            variables: list[Any] = []
            if not kind.unmodified:
                grads, variables = gradients_of(self._model, part)
                # All micro-batches must start from the same weights. So `begin` must undo what
                # `train_step` itself assigned to weights.
                self._state.note_changes(part.changes)
        grads, row_forms = summable(grads)
        part_squares = tf.zeros(())
        if kind.noisy:
            part_squares = squared_norm(grads) / tf.cast(batch_of(data), tf.float32)
        log_shares = self._logs.of_part(logs, part)
        # What the part added to a metric counts by the part's weight, unless the metric is a plain
        # sum over the part's own samples.
        self._state.weigh_metrics(weight)
        state_changes = self._state.shares(weight)
        numbers = _PartNumbers(part_squares, state_changes, log_shares)
        return PartResult(numbers.packed(), grads, row_forms, variables)


def testing(
    model: Any,
    replicas: Replicas,
    combine_rules: CombineRules,
    deferred: DeferredResults,
    *,
    replicated: bool,
) -> Callable[..., StepLogs]:
    """A step of `evaluate`. It takes each replica's batch in one piece."""

    def on_replica(
        logs: Logs,
        replacements: PartReplacements,
        values: LocalValues,
        _micro_batches: tf.Tensor,
    ) -> tuple[Any, Any]:
        """The replica's vector for the logs, and its metrics' state that stays unsummed.

        The vector has the shares of the logs, then the metrics' state that is summed.
        """
        data, packed_weights = values[number_of_replica() - replicas.first_own]
        weight = packed_weights[0]  # `PartWeights.batch`
        state = State(model, combine_rules, replicated=replicated)
        state.begin()
        with part_of(
            weight, replacements, combine_rules, replicated=replicated
        ) as part:
            own_logs = model.test_step(data)
        state.weigh_metrics(weight)
        log_shares = logs.of_part(own_logs, part)
        return logs.with_metric_state(log_shares), metric_values(deferred.unsummed)

    def step(values: LocalValues, micro_batches: tf.Tensor) -> StepLogs:
        logs = Logs(model, deferred)
        replacements = replacements_for_parts(model, takes_gradients=False)
        strategy = replicas.strategy
        local_results = strategy.experimental_local_results
        own_vectors, unsummed = strategy.run(
            partial(on_replica, logs, replacements), (values, micro_batches)
        )
        # Only the logs need these sums. So they are made on one device, unlike in training.
        with tf.device(replicas.names[0]):
            log_totals = strategy.reduce(
                tf.distribute.ReduceOp.SUM, own_vectors, axis=None
            )
            return logs.of_whole_batch(
                log_totals, [local_results(state) for state in unsummed]
            )

    return step


def predicting(
    model: Any, replicas: Replicas, *, replicated: bool
) -> Callable[..., Any]:
    """A step of `predict` that returns the outputs, in the order of the samples."""

    def of_all(outputs: Any) -> Any:
        """One of the model's outputs, for the samples of all replicas."""
        by_replica = replicas.strategy.experimental_local_results(outputs)
        with tf.device("/CPU:0"):
            # Each replica has the outputs of all samples: it computed or gathered them.
            if replicated or replicas.cluster:
                return tf.identity(by_replica[0])
            return tf.concat(by_replica, axis=0)

    def on_replica(values: LocalValues) -> Any:
        data, _ = values[number_of_replica() - replicas.first_own]
        outputs = model.predict_step(data)
        if replicated or replicas.cluster is None:
            return outputs
        gather = tf.distribute.get_replica_context().all_gather
        return keras.tree.map_structure(lambda own: gather(own, axis=0), outputs)

    def step(values: LocalValues, micro_batches: tf.Tensor) -> Any:
        del micro_batches  # each replica takes its batch in one piece
        outputs = replicas.strategy.run(on_replica, (values,))
        return keras.tree.map_structure(of_all, outputs)

    return step


def replacements_for_parts(model: Any, *, takes_gradients: bool) -> PartReplacements:
    """What replaces Keras' methods while the model's own step computes a part.

    The optimizer's methods are among them only if the step `takes_gradients` from the optimizer,
    to sum and apply them itself.
    """
    if takes_gradients:
        return weighing(model) | taking_gradients(model)
    return weighing(model) | inlining_tf_functions(model)


def _stamps_of_cluster(stamps: Any) -> Any:
    """Each process calls this with its own stamps, [4 or 6]; returns those of all, [processes, …].

    The processes' clocks differ, but their gradients were summed at the same moment. So this shifts
    each process's four times until its SUMMED equals that of process 0.
    """
    own_summed = stamps[SUMMED]
    since_summed = stamps[: FINISHED + 1] - own_summed
    norms = stamps[FINISHED + 1 :]
    own = tf.concat([since_summed, norms, [own_summed]], axis=0)  # [5 or 7]
    gather = tf.distribute.get_replica_context().all_gather
    of_all = gather(own[tf.newaxis], axis=0)
    first_summed = of_all[0, -1]
    times = of_all[:, : FINISHED + 1] + first_summed
    return tf.concat([times, of_all[:, FINISHED + 1 : -1]], axis=1)
