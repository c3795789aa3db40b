"""Results of metrics whose states are too large for each step's sum: computed when one is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.keras_patches import FUNCTION_CALL
from gpubalance.engine.replacing import acting, tracing_lock
from gpubalance.engine.step.part import MetricResult
from gpubalance.engine.step.state import metric_variables, summed_of, with_inner
from gpubalance.engine.step.vectors import together

# As much goes along in a step's sum for nothing.
_LARGE_BYTES = 64 << 10


class LaterResults:
    """The logs of one trace that are computed when they are read, and from what.

    A step returns each replica's own values of the `local` variables as they are after it: so a log
    that is read after other steps is still that step's. `summed` are those that each step sums.
    Over several processes there are no such logs, as all would have to read one at the same moment.
    """

    def __init__(self, model: Any, devices: Sequence[str] = ()) -> None:
        """`devices` are those whose values a reader can sum: one or none if there is no such."""
        self._devices = devices
        self._results: dict[str, MetricResult] = {}  # by the log's name
        self.summed = summed_of(model)
        self._large = [one for one, _ in metric_variables(model) if _is_large(one)]
        self.local: list[Any] = []

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
        self.local = large
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
            for variable, of_replicas in zip(self.local, local, strict=True):
                values.append((variable, tf.add_n(of_replicas)))
            return together(self._numbers(values))

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
