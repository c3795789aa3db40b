"""What a step returns for the logs, made of what it returns on each replica, and read later."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import count
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from gpubalance.engine import keras_patches
from gpubalance.engine.keras_patches import FUNCTION_CALL
from gpubalance.engine.replacing import acting, tracing_lock
from gpubalance.engine.sources import SAMPLES, ancestors, sources
from gpubalance.engine.step.part import MetricResult, Part
from gpubalance.engine.step.rounding import computed_again
from gpubalance.engine.step.state import (
    handles,
    metric_values,
    metric_variables,
    summed_of,
    with_inner,
)
from gpubalance.engine.step.sums import one_vector, split_vector, weighed, wide
from gpubalance.errors import BadInput
from gpubalance.results.combine_rules import MEAN

NOT_FROM_PARTS = (
    "neither a metric's result nor a mean or sum over samples: the devices' values are averaged, "
    "weighted by samples"
)
_LATE = (
    "computed from values read after the gradients are applied: a split applies them "
    "later, at the end of the step"
)

# As much goes along in a step's sum for nothing.
_LARGE_BYTES = 64 << 10


class StepLogs(NamedTuple):
    """What a step returns for the logs; `read_later` makes the logs of it."""

    # By name; None for a single number, which is in `numbers`, and for a log that is computed later
    logs: dict[str, Any]
    numbers: Any  # the single numbers in order: a vector, float32 or float64
    # What the later ones are computed from, () if there are none: each replica's values of
    # `LaterResults.unsummed`, and the sums of `LaterResults.summed`
    states: Any


class Logs:
    """The logs of one trace, known from its first part of a batch: the other parts' are alike."""

    def __init__(self, model: Any, later: LaterResults) -> None:
        """`later` takes those that are not computed in the step."""
        self._model = model
        self._later = later
        self._values: dict[str, Any] | None = None  # of the first part, by name
        self._results: dict[int, MetricResult] = {}
        self._late: set[Any] = set()  # the operations after gradients are applied
        self._weight_exponents: dict[
            str, int
        ] = {}  # of the values that depend on samples
        # Of a part that is compiled: the graph, what the logs read in it, and that outside of it.
        self._graph: Any = None
        self._early: list[Any] = []
        self._outside: dict[int, Any] = {}

    def of_part(self, logs: Mapping[str, Any], part: Part) -> list[Any]:
        """The part's share of each number that depends on samples.

        Over all parts they sum to the whole batch's.
        """
        values = _flat(logs)
        if self._values is None:
            self.note(values, part)
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
        self._values = values
        self._results = part.results
        self._graph = tf.compat.v1.get_default_graph()
        if part.applied:
            operations = tf.compat.v1.get_default_graph().get_operations()
            self._late = set(operations[part.operations_before :])
        for name, value in values.items():
            weight_exponent = self._weight_exponent(name, value, part)
            if weight_exponent is not None:
                self._weight_exponents[name] = weight_exponent
        self._later.take(values, self._results, self._results_in)
        for change in part.changes:
            if change.late and self._reads_changed(change.value):
                metric = change.variable.path.partition("/")[0]
                part.warn(log_warning(self._model, metric, _LATE))
        return {name: values[name] for name in self._weight_exponents}

    def early_reads(self) -> list[Any]:
        """What the logs read of variables before these change; none but in the first part's graph.

        A compiled part returns them, and `note_early_reads` takes them after it has run.
        """
        if tf.compat.v1.get_default_graph() is not self._graph:
            return []
        reads = {}
        for name, value in (self._values or {}).items():
            if name in self._weight_exponents or not tf.is_symbolic_tensor(value):
                continue
            for tensor in ancestors(value, self._results):
                if tensor.op.type == "ReadVariableOp" and tensor.op not in self._late:
                    reads[id(tensor)] = tensor
        self._early = list(reads.values())
        return self._early

    def note_early_reads(self, early: list[Any]) -> None:
        """Takes the `early_reads` that a compiled part returned."""
        for inner, outer in zip(self._early, early, strict=False):
            self._outside[id(inner)] = outer

    def with_metric_state(self, tensors: Sequence[Any]) -> Any:
        """One vector: these tensors, then the metrics' variables that each step sums."""
        return one_vector([*tensors, *metric_values(self._later.summed)])

    def of_whole_batch(self, totals: Any, local: Any) -> StepLogs:
        """The logs of the whole batch, outside of a replica.

        `totals` is a vector: the sums over all replicas of what `of_part` returned, and of what
        `with_metric_state` appended. `local` has each replica's values of what is not summed. A log
        that depends on samples through metrics' results or changed weights only is computed again,
        with those of now.
        """
        values = self._values or {}
        variables = self._later.summed
        shapes = [values[name].shape for name in self._weight_exponents]
        log_count = len(shapes)
        shapes += [variable.shape for variable in variables]
        split = split_vector(totals, shapes)
        known = dict(zip(self._weight_exponents, split[:log_count], strict=True))
        counts = split[log_count:]
        logs: dict[str, Any] = {}
        numbers = []
        # Else TensorFlow would sum each variable once more, on the host.
        with (
            keras.StatelessScope(list(zip(variables, counts, strict=True))),
            acting({keras_patches.FUNCTION_CALL: traced_anew}),
        ):
            for name, value in values.items():
                if name in self._later:
                    logs[name] = None
                else:
                    logs[name] = known[name] if name in known else self._of_now(value)
        for name, value in logs.items():
            if value is not None and value.dtype.is_floating and not value.shape.rank:
                numbers.append(value)
                logs[name] = None
        return StepLogs(logs, one_vector(numbers), (local, counts) if local else ())

    def _weight_exponent(self, name: str, value: Any, part: Part) -> int | None:
        """The power of a log's value; None if it depends on samples by metrics' results only."""
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
            part.warn(log_warning(self._model, name, _LATE))
        elif self._results_in(value):
            part.warn(log_warning(self._model, name, NOT_FROM_PARTS))
        return MEAN if part.replicated else part.combine_rules.logs.get(name, MEAN)

    def _results_in(self, value: Any) -> list[MetricResult]:
        """The metrics' results that a value is computed from."""
        found = [id(tensor) for tensor in ancestors(value, self._results)]
        return [self._results[key] for key in found if key in self._results]

    def _late_reads(self, value: Any) -> set[Any]:
        """The reads of variables on the way to a value, after the gradients are applied."""
        operations = {tensor.op for tensor in ancestors(value, self._results)}
        return {op for op in operations & self._late if op.type == "ReadVariableOp"}

    def _reads_changed(self, value: Any) -> bool:
        """Whether a value needs what applying gradients changes, as it is after that."""
        if not self._late:
            return False
        changed = handles(self._model.trainable_variables)
        changed |= handles(self._model.optimizer.variables)
        return any(
            sources(read.outputs[0]) & changed for read in self._late_reads(value)
        )

    def _of_now(self, value: Any) -> Any:
        if not tf.is_symbolic_tensor(value):
            return tf.convert_to_tensor(value)
        known = dict(self._outside)
        for result in self._results_in(value):
            numbers = keras.tree.flatten(result.metric.result())
            known[id(result.tensor)] = tf.convert_to_tensor(numbers[result.place])
        return computed_again(value, known, self._late_reads(value))


def _is_by_sample(value: Any, part: Part) -> bool:
    if value.shape.rank is None:
        return part.micro
    return None in value.shape.as_list()


def _flat(logs: Mapping[str, Any]) -> dict[str, Any]:
    """The logs with those of dicts inside, as all compiled metrics give one, by Keras' own rule."""
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
    """A number for whoever takes its float, as Keras does when a callback wants the logs."""

    read: Callable[[], list[float]]
    place: int

    def __float__(self) -> float:
        return self.read()[self.place]


def read_later(step_logs: StepLogs, later: LaterResults) -> dict[str, Any]:
    """A step's logs, in which what is None is a number that is read when somebody asks for it.

    All of `numbers` are read at once when the first one is asked for; so are those that are
    computed `later`.
    """
    logs, numbers, states = step_logs
    read = cache(lambda: numbers.numpy().tolist())
    compute = cache(lambda: later.read(*states))
    filled = dict(logs)
    places = count()
    for name, value in logs.items():
        if name in later:
            filled[name] = _Number(compute, later.place(name))
        elif value is None:
            filled[name] = _Number(read, next(places))
    return filled


class LaterResults:
    """The logs of one trace that are computed when they are read, and from what.

    `summed` and `unsummed` are metrics' variables. Each step sums the values of `summed` over the
    replicas. Of `unsummed` a step returns each replica's own values as they are after the step: so
    a log that is read after other steps is still that step's. Over several processes there are no
    such logs, as all would have to read one at the same moment.
    """

    def __init__(self, model: Any, devices: Sequence[str] = ()) -> None:
        """`devices` are those whose values a reader can sum: one or none if there is no such."""
        self._devices = devices
        self._results: dict[str, MetricResult] = {}  # by the log's name
        self.summed = summed_of(model)
        self._large = [one for one, _ in metric_variables(model) if _is_large(one)]
        self.unsummed: list[Any] = []

    def take(
        self,
        logs: Mapping[str, Any],
        results: Mapping[int, MetricResult],
        needed: Callable[[Any], Sequence[MetricResult]],
    ) -> None:
        """Takes the logs of a trace. `needed` gives the results that a log is computed from.

        No state is left out of the sum if a log needs it otherwise than as a metric's result.
        """
        large = self._large
        known = self.summed + large
        if not large or len(self._devices) < 2:
            return
        found = {}
        for name, value in logs.items():
            if not tf.is_symbolic_tensor(value):
                continue
            result = results.get(id(value))
            if result is None:
                if any(_reads(one.metric, large) for one in needed(value)):
                    return
            elif _reads(result.metric, large):
                is_number = value.dtype.is_floating and not value.shape.rank
                if not is_number or not _reads_only(result.metric, known):
                    return
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
        known: dict[int, list[Any]] = {}
        numbers = []
        with keras.StatelessScope(values), acting({FUNCTION_CALL: traced_anew}):
            for result in self._results.values():
                key = id(result.metric)
                if key not in known:
                    known[key] = keras.tree.flatten(result.metric.result())
                numbers.append(tf.convert_to_tensor(known[key][result.place]))
        return numbers


def traced_anew(
    call: Callable[..., Any], function: Any, *arguments: Any, **named: Any
) -> Any:
    """Calls a tf.function as if for the first time.

    It would keep a trace with values that only this graph has, and use that in the next one.
    """
    return call(tf.function(function.python_function), *arguments, **named)


def _is_large(variable: Any) -> bool:
    """Whether it is a state of which each replica has its own, and too large to sum each time.

    Whole numbers, as `MeanIoU` counts, go over the host if a step reads them.
    """
    dtype = tf.as_dtype(variable.dtype)
    size: int = dtype.size * math.prod(variable.shape)
    is_number = dtype.is_floating or dtype.is_integer
    return is_number and variable.aggregation == "sum" and size > _LARGE_BYTES


def _variables_of(metric: Any) -> list[Any]:
    return [variable for one in with_inner([metric]) for variable in one._variables]


def _reads(metric: Any, variables: Sequence[Any]) -> bool:
    """Whether the metric's result reads one of the variables."""
    return len(_without(_variables_of(metric), variables)) < len(_variables_of(metric))


def _reads_only(metric: Any, variables: Sequence[Any]) -> bool:
    return not _without(_variables_of(metric), variables)


def _without(variables: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    left_out = {id(variable) for variable in others}
    return [variable for variable in variables if id(variable) not in left_out]
