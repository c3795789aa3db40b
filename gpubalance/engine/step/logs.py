"""The logs of a step: made from all replicas' parts, and read when somebody asks for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import count
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from gpubalance.engine.keras_patches import FUNCTION_CALL
from gpubalance.engine.replacing import acting, tracing_lock
from gpubalance.engine.sources import SAMPLES, ancestors, sources
from gpubalance.engine.step.part import MetricResult, Part
from gpubalance.engine.step.rounding import computed_again
from gpubalance.engine.step.state import (
    handles,
    metric_values,
    of_each_replica,
    with_inner,
)
from gpubalance.engine.step.sums import one_vector, split_vector, weighed, wide
from gpubalance.errors import BadInput
from gpubalance.results.combine_rules import MEAN

NOT_FROM_PARTS = (
    "neither a metric's result nor a mean or sum over samples: the devices' values are averaged, "
    "weighted by samples"
)
_READ_AFTER_APPLY = (
    "computed from values read after the gradients are applied: a split applies them "
    "later, at the end of the step"
)

# A metric's state of up to this size adds next to nothing to the time of a step's sum.
_LARGE_BYTES = 64 << 10


class StepLogs(NamedTuple):
    """What a step returns for the logs; `read_when_asked` makes the logs of it."""

    # By name; None for a float scalar, which is in `numbers`, and for a deferred log
    logs: dict[str, Any]
    numbers: Any  # the float scalars in order: a vector, float32 or float64
    # What deferred logs are computed from, () if there are none: each replica's values of
    # `DeferredResults.unsummed`, and the sums of `DeferredResults.summed`
    states: Any


class Logs:
    """The logs of one traced step. Its first part shows how each is computed, for all parts."""

    def __init__(self, model: Any, deferred: DeferredResults) -> None:
        """`deferred` takes the logs that are not computed in the step."""
        self._model = model
        self._deferred = deferred
        # All of these are of the first part. Its logs by name, as `_flat` gives them:
        self._values: dict[str, Any] | None = None
        self._results: dict[int, MetricResult] = {}  # `Part.results`
        self._graph: Any = None  # in which it was traced: its own if XLA compiles it
        self._ops_after_apply: set[Any] = set()  # after its gradients were applied
        self._weight_exponents: dict[
            str, int
        ] = {}  # by name; only of logs that are summed
        # If it is compiled: the reads of variables in its graph that logs need, and by the ids of
        # these tensors the values that the compiled function returned for them
        self._inner_reads: list[Any] = []
        self._outer_reads: dict[int, Any] = {}

    def of_part(self, logs: Mapping[str, Any], part: Part) -> list[Any]:
        """The part's share of each log that is summed over parts.

        Over all parts they sum to the whole batch's.
        """
        values = _flat(logs)
        if self._values is None:
            self._note(values, part)
        shares = []
        for name, weight_exponent in self._weight_exponents.items():
            number = tf.cast(values[name], wide(values[name].dtype))
            shares.append(weighed(number, part.weight, weight_exponent))
        return shares

    def note(self, logs: Mapping[str, Any], part: Part) -> dict[str, Any]:
        """Takes the first part's logs and returns those that depend on samples.

        The parity check is warned of those that are not exact.
        """
        values = _flat(logs)
        self._note(values, part)
        return {name: values[name] for name in self._weight_exponents}

    def _note(self, values: dict[str, Any], part: Part) -> None:
        """Takes the first part's flat logs."""
        self._values = values
        self._results = part.results
        self._graph = tf.compat.v1.get_default_graph()
        if part.applied:
            operations = self._graph.get_operations()
            self._ops_after_apply = set(operations[part.operations_before :])
        for name, value in values.items():
            weight_exponent = self._weight_exponent(name, value, part)
            if weight_exponent is not None:
                self._weight_exponents[name] = weight_exponent
        self._deferred.take(values, self._results, self._results_in)
        for change in part.changes:
            if change.late and self._reads_changed(change.value):
                metric_name = change.variable.path.partition("/")[0]
                part.warn(log_warning(self._model, metric_name, _READ_AFTER_APPLY))

    def reads_before_apply(self) -> list[Any]:
        """What the logs read of variables before gradients are applied; [] after the first part.

        A compiled part returns them, because the logs can't use its graph's tensors outside of it.
        `note_reads_before_apply` takes what it returned.
        """
        if tf.compat.v1.get_default_graph() is not self._graph:
            return []
        reads = {}
        for name, value in (self._values or {}).items():
            if name in self._weight_exponents or not tf.is_symbolic_tensor(value):
                continue
            for tensor in ancestors(value, self._results):
                is_read = tensor.op.type == "ReadVariableOp"
                if is_read and tensor.op not in self._ops_after_apply:
                    reads[id(tensor)] = tensor
        self._inner_reads = list(reads.values())
        return self._inner_reads

    def note_reads_before_apply(self, outer_reads: list[Any]) -> None:
        """Takes the `reads_before_apply` that a compiled part returned, outside of it."""
        # Not strict: the parts after the first return none.
        for inner, outer in zip(self._inner_reads, outer_reads, strict=False):
            self._outer_reads[id(inner)] = outer

    def with_metric_state(self, tensors: Sequence[Any]) -> Any:
        """One vector: these tensors, then the metrics' variables that each step sums."""
        return one_vector([*tensors, *metric_values(self._deferred.summed)])

    def of_whole_batch(self, totals: Any, local: Any) -> StepLogs:
        """The logs of the whole batch, outside of a replica.

        `totals` is a vector: the sums over all replicas of what `of_part` returned, and of what
        `with_metric_state` appended. `local` has, for each variable of `DeferredResults.unsummed`,
        all replicas' values. `_of_now` computes the logs that are neither summed nor deferred:
        they depend on samples only through metrics' results and changed weights, or not at all.
        """
        values = self._values or {}
        variables = self._deferred.summed
        shapes = [values[name].shape for name in self._weight_exponents]
        log_count = len(shapes)
        shapes += [variable.shape for variable in variables]
        pieces = split_vector(totals, shapes)
        summed_logs = dict(zip(self._weight_exponents, pieces[:log_count], strict=True))
        metric_sums = pieces[log_count:]
        logs: dict[str, Any] = {}
        numbers = []
        # In the scope the metrics' variables have these sums. Else TensorFlow would sum each of
        # them once more, on the host.
        with (
            keras.StatelessScope(list(zip(variables, metric_sums, strict=True))),
            acting({FUNCTION_CALL: traced_anew}),
        ):
            for name, value in values.items():
                if name in self._deferred:
                    logs[name] = None
                elif name in summed_logs:
                    logs[name] = summed_logs[name]
                else:
                    logs[name] = self._of_now(value)
        for name, value in logs.items():
            if value is not None and _is_float_scalar(value):
                numbers.append(value)
                logs[name] = None
        states = (local, metric_sums) if local else ()
        return StepLogs(logs, one_vector(numbers), states)

    def _weight_exponent(self, name: str, value: Any, part: Part) -> int | None:
        """The weight exponent of a log that is summed over parts; None if it is not.

        It is not if it is a constant or itself a metric's result, or if it depends on samples only
        through metrics' results. Raises BadInput for a log with one value per sample.
        """
        if not tf.is_symbolic_tensor(value) or id(value) in self._results:
            return None
        if _is_by_sample(value, part):
            raise BadInput(
                f"the model {self._model.name} logs {name} with one value per sample",
                remedy="log a single number, such as the mean",
            )
        if SAMPLES not in sources(value, self._results):
            return None
        if self._reads_changed(value):
            part.warn(log_warning(self._model, name, _READ_AFTER_APPLY))
        elif self._results_in(value):
            part.warn(log_warning(self._model, name, NOT_FROM_PARTS))
        return MEAN if part.replicated else part.combine_rules.logs.get(name, MEAN)

    def _results_in(self, value: Any) -> list[MetricResult]:
        """The metrics' results that a value is computed from."""
        found = [id(tensor) for tensor in ancestors(value, self._results)]
        return [self._results[key] for key in found if key in self._results]

    def _reads_after_apply(self, value: Any) -> set[Any]:
        """The operations after the gradients are applied that read variables for a value."""
        needed = {tensor.op for tensor in ancestors(value, self._results)}
        after_apply = needed & self._ops_after_apply
        return {op for op in after_apply if op.type == "ReadVariableOp"}

    def _reads_changed(self, value: Any) -> bool:
        """Whether a value needs what applying gradients changes, as it is after that."""
        if not self._ops_after_apply:
            return False
        changed = handles(self._model.trainable_variables)
        changed |= handles(self._model.optimizer.variables)
        return any(
            sources(read.outputs[0]) & changed
            for read in self._reads_after_apply(value)
        )

    def _of_now(self, value: Any) -> Any:
        """A log of the first part, computed anew at the end of the step.

        Metrics' results are then those over all replicas. What the part read after it had applied
        its gradients is read again, because only now they are applied.
        """
        if not tf.is_symbolic_tensor(value):
            return tf.convert_to_tensor(value)
        new_values = dict(self._outer_reads)
        for result in self._results_in(value):
            numbers = keras.tree.flatten(result.metric.result())
            new_values[id(result.tensor)] = tf.convert_to_tensor(numbers[result.place])
        return computed_again(value, new_values, self._reads_after_apply(value))


def _is_by_sample(value: Any, part: Part) -> bool:
    """Whether a log has a dimension of no fixed size; in micro-batches also an unknown rank."""
    if value.shape.rank is None:
        return part.micro
    return None in value.shape.as_list()


def _flat(logs: Mapping[str, Any]) -> dict[str, Any]:
    """All logs in one dict, sorted by name, as Keras does.

    A nested dict, such as that of all compiled metrics, gives its entries.
    """
    flat: dict[str, Any] = {}
    for name, value in sorted(logs.items()):
        flat |= _flat(value) if isinstance(value, dict) else {name: value}
    return flat


def log_warning(model: Any, name: str, what: str) -> str:
    """The sentence about a log that is not exact."""
    return (
        f"the model {model.name} logs {name}, which is {what}. The log is not exactly "
        "that of one device"
    )


@dataclass(frozen=True)
class _Number:
    """A log that is read when its float is taken, as Keras does for a callback that wants logs."""

    read: Callable[[], list[float]]
    place: int

    def __float__(self) -> float:
        return self.read()[self.place]


def read_when_asked(step_logs: StepLogs, deferred: DeferredResults) -> dict[str, Any]:
    """A step's logs by name, with a `_Number` for each one that is None.

    When the first of `numbers` is asked for, all of them are read. The `deferred` logs, too, are
    all computed for the first.
    """
    logs, numbers, states = step_logs
    read = cache(lambda: numbers.numpy().tolist())
    compute = cache(lambda: deferred.read(*states))
    filled = dict(logs)
    places = count()
    for name, value in logs.items():
        if name in deferred:
            filled[name] = _Number(compute, deferred.place(name))
        elif value is None:
            filled[name] = _Number(read, next(places))
    return filled


class DeferredResults:
    """The logs of one trace that are computed when they are read, and from what.

    `summed` and `unsummed` are metrics' variables. Each step sums the values of `summed` over the
    replicas. Of `unsummed` a step returns each replica's own values as they are after the step: so
    a log that is read after other steps is still that step's. Over several processes there are no
    such logs, as all would have to read one at the same moment.
    """

    def __init__(self, model: Any, devices: Sequence[str] = ()) -> None:
        """`devices`: all replicas', none in a cluster. With fewer than two no log is deferred."""
        self._devices = devices
        self._results: dict[str, MetricResult] = {}  # by the log's name
        of_each = of_each_replica(model, several_here=len(devices) > 1)
        self.summed = [one for one in of_each if one.dtype in ("float32", "float64")]
        self._large = list(filter(_is_large, of_each))
        self.unsummed: list[Any] = []

    def take(
        self,
        logs: Mapping[str, Any],
        results: Mapping[int, MetricResult],
        needed: Callable[[Any], Sequence[MetricResult]],
    ) -> None:
        """Takes the logs of a trace. `needed` gives the results that a log is computed from.

        All large states stay out of the step's sum, or none does. None does if a log needs one
        other than as a metric's result, if such a result is no float scalar, or if its metric has a
        variable that is neither summed nor large.
        """
        large = self._large
        available = self.summed + large
        if not large or len(self._devices) < 2:
            return  # nothing is large, or no reader can sum over devices
        found = {}
        for name, value in logs.items():
            if not tf.is_symbolic_tensor(value):
                continue
            result = results.get(id(value))
            if result is None:
                if any(_has_some(one.metric, large) for one in needed(value)):
                    return  # the step computes this log from the state's sum
            elif _has_some(result.metric, large):
                if not _is_float_scalar(value):
                    return  # a `_Number` is one float
                if not _has_only(result.metric, available):
                    return  # a reader would lack a variable's value as of that step
                found[name] = result
        self._results = found
        self.unsummed = large
        self.summed = _without(self.summed, large)

    def __contains__(self, name: str) -> bool:
        return name in self._results

    def place(self, name: str) -> int:
        """The log's place in what is `read`."""
        return list(self._results).index(name)

    def read(self, local: Sequence[Any], totals: Sequence[Any]) -> list[float]:
        """The logs' values, from each replica's values of `local` and the sums of `summed`."""
        return list(self._function(local, totals).numpy().tolist())

    @cached_property
    def _function(self) -> Any:
        return tf.function(self._computed, autograph=False)

    def _computed(self, local: Sequence[Any], totals: Sequence[Any]) -> Any:
        with tracing_lock, tf.device(self._devices[0]):
            values = [*zip(self.summed, totals, strict=True)]
            for variable, of_replicas in zip(self.unsummed, local, strict=True):
                values.append((variable, tf.add_n(of_replicas)))
            return one_vector(self._numbers(values))

    def _numbers(self, values: list[tuple[Any, Any]]) -> list[Any]:
        """The deferred logs in order, with these (variable, value) pairs for the metrics' state."""
        results_of: dict[int, list[Any]] = {}  # by the metric's id, flat
        numbers = []
        with keras.StatelessScope(values), acting({FUNCTION_CALL: traced_anew}):
            for result in self._results.values():
                key = id(result.metric)
                if key not in results_of:
                    results_of[key] = keras.tree.flatten(result.metric.result())
                numbers.append(tf.convert_to_tensor(results_of[key][result.place]))
        return numbers


def traced_anew(
    call: Callable[..., Any], function: Any, *arguments: Any, **named: Any
) -> Any:
    """A tf.function's `__call__` while a metric's result is computed: it traces the function anew.

    In a `StatelessScope` a trace takes in values that only the present graph has. The function
    would keep that trace, and use it in the next graph.
    """
    return call(tf.function(function.python_function), *arguments, **named)


def _is_large(variable: Any) -> bool:
    """Whether a metric's state is too large to sum each time.

    Whole numbers, as `MeanIoU` counts, go over the host if a step reads them.
    """
    dtype = tf.as_dtype(variable.dtype)
    size: int = dtype.size * math.prod(variable.shape)
    is_numeric = dtype.is_floating or dtype.is_integer
    return is_numeric and size > _LARGE_BYTES


def _is_float_scalar(value: Any) -> bool:
    return value.dtype.is_floating and not value.shape.rank


def _variables_of(metric: Any) -> list[Any]:
    return [variable for one in with_inner([metric]) for variable in one._variables]


def _has_some(metric: Any, variables: Sequence[Any]) -> bool:
    """Whether the metric has one of the variables, itself or in a metric inside it."""
    return len(_without(_variables_of(metric), variables)) < len(_variables_of(metric))


def _has_only(metric: Any, variables: Sequence[Any]) -> bool:
    return not _without(_variables_of(metric), variables)


def _without(variables: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    left_out = {id(variable) for variable in others}
    return [variable for variable in variables if id(variable) not in left_out]
