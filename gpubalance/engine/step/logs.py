"""What a step returns for the logs, made of what it returns on each replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.sources import SAMPLES, ancestors, sources
from gpubalance.engine.step.gradients import handles
from gpubalance.engine.step.part import Part
from gpubalance.engine.step.state import summed_of
from gpubalance.engine.step.sums import parted, together, weighed, wide
from gpubalance.errors import BadInput
from gpubalance.results.decomposition import MEAN, Decomposition

NOT_FROM_PARTS = (
    "neither a metric's result nor a mean or sum over samples: the devices' values are averaged, "
    "weighted by samples"
)
_LATE = "computed with what it reads after it applies gradients: a split applies them later"


class Logs:
    """The logs of one trace, known from its first part of a batch: what the other parts return is
    like it.
    """

    def __init__(
        self, model: Any, verdict: Decomposition, *, whole: bool = False, xla: bool = False
    ) -> None:
        """With `xla` parts are compiled, so that nothing can be computed again from what is inside
        of them.
        """
        self._model, self.verdict, self._whole, self._xla = model, verdict, whole, xla
        self._values: Mapping[str, Any] | None = None
        self._results: dict[int, tuple[Any, Any, int]] = {}
        self._late: set[Any] = set()
        self._powers: dict[str, int] = {}

    def of_part(self, values: Mapping[str, Any], part: Part) -> list[Any]:
        """The part's share of each number that depends on samples: over all parts they sum to the
        whole batch's.
        """
        values = _flat(values)
        if self._values is None:
            self.note(values, part)
        numbers = {name: tf.cast(values[name], wide(values[name].dtype)) for name in self._powers}
        return [weighed(numbers[name], part.weight, power) for name, power in self._powers.items()]

    def note(self, values: Mapping[str, Any], part: Part) -> dict[str, Any]:
        """Takes the first part's logs and returns those that depend on samples.

        Those that are not exact are told to the parity check.
        """
        values = _flat(values)
        self._values, self._results = values, part.results
        if part.taken:
            self._late = set(tf.compat.v1.get_default_graph().get_operations()[part.taken_after :])
        found = {name: self._power(name, value, part) for name, value in values.items()}
        self._powers = {name: power for name, power in found.items() if power is not None}
        late = (
            change for change in part.changes if change.late and self._reads_changed(change.value)
        )
        for name in {change.variable.path.partition("/")[0] for change in late}:
            part.tell(told_of_log(self._model, name, _LATE))
        return {name: values[name] for name in self._powers}

    @property
    def _shapes(self) -> list[Any]:
        """The shapes of the shares."""
        return [(self._values or {})[name].shape for name in self._powers]

    def of_all(self, sums: Any) -> tuple[dict[str, Any], Any]:
        """The logs of the whole batch, outside of a replica; and of those that are single numbers
        one vector instead.

        `sums` is a vector of all replicas' shares, and of what each counted in the variables of
        `summed_of`. What does not depend on samples but on metrics' results or changed weights is
        computed again, with those of now.
        """
        variables = summed_of(self._model)
        parts = parted(sums, [*self._shapes, *(variable.shape for variable in variables)])
        known = dict(zip(self._powers, parts[: len(self._powers)], strict=True))
        counted = zip(variables, parts[len(self._powers) :], strict=True)
        # Else TensorFlow would sum each variable once more, on the host.
        with keras.StatelessScope(list(counted)):
            logs = {
                name: known[name] if name in known else self._again(value)
                for name, value in (self._values or {}).items()
            }
        numbers = {
            name: value
            for name, value in logs.items()
            if value.dtype.is_floating and not value.shape.rank
        }
        rest = {name: None if name in numbers else value for name, value in logs.items()}
        return rest, together(list(numbers.values()))

    def _power(self, name: str, value: Any, part: Part) -> int | None:
        """The power of a log's value; None for one that does not depend on samples but by metrics'
        results.
        """
        if not tf.is_symbolic_tensor(value) or id(value) in self._results:
            return None
        if self._xla:
            return MEAN
        if part.micro if value.shape.rank is None else None in value.shape.as_list():
            raise BadInput(
                f"the model {self._model.name} logs {name}, which has a value for each sample",
                remedy="log one number, such as their mean",
            )
        if SAMPLES not in sources(value, self._results):
            return None
        if self._reads_changed(value):
            part.tell(told_of_log(self._model, name, _LATE))
        elif self._results_in(value):
            part.tell(told_of_log(self._model, name, NOT_FROM_PARTS))
        return MEAN if self._whole else self.verdict.logs.get(name, MEAN)

    def _results_in(self, value: Any) -> list[int]:
        return [
            id(tensor) for tensor in ancestors(value, self._results) if id(tensor) in self._results
        ]

    def _late_reads(self, value: Any) -> set[Any]:
        """The reads of variables, on the way to a value, that come after the step has applied its
        gradients.
        """
        reads = {
            one.op for one in ancestors(value, self._results) if one.op.type == "ReadVariableOp"
        }
        return reads & self._late

    def _reads_changed(self, value: Any) -> bool:
        """Whether a value needs what applying gradients changes, as it is after that."""
        changed = (
            handles((*self._model.trainable_variables, *self._model.optimizer.variables))
            if self._late
            else set()
        )
        return any(sources(read.outputs[0]) & changed for read in self._late_reads(value))

    def _again(self, value: Any) -> Any:
        if not tf.is_symbolic_tensor(value):
            return tf.convert_to_tensor(value)
        over_all = {}
        for one in self._results_in(value):
            _, metric, at = self._results[one]
            over_all[one] = tf.convert_to_tensor(keras.tree.flatten(metric.result())[at])
        return _computed_again(value, over_all, self._late_reads(value))


@dataclass(eq=False)
class _Numbers:
    """Numbers on a device, which are read all at once when the first one is asked for."""

    vector: Any

    @cached_property
    def read(self) -> list[float]:
        return self.vector.numpy().tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Number:
    """One of them, for whoever takes its float, as Keras does when a callback wants the logs."""

    numbers: _Numbers
    place: int

    def __float__(self) -> float:
        return self.numbers.read[self.place]


def as_told(logs: Mapping[str, Any], vector: Any) -> dict[str, Any]:
    """A step's logs, of which the numbers stay in their vector until one is read."""
    numbers, names = _Numbers(vector), [name for name, value in logs.items() if value is None]
    return {
        name: _Number(numbers, names.index(name)) if value is None else value
        for name, value in logs.items()
    }


def told_of_log(model: Any, name: str, what: str) -> str:
    """The sentence about a log that is not exact."""
    return (
        f"the model {model.name} logs {name}, which is {what}, so the log is not exactly that of "
        "one device"
    )


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with those of dicts inside, as the result of all compiled metrics is one, by
    Keras' own rule.
    """
    found: dict[str, Any] = {}
    for name, value in sorted(values.items()):
        found |= _flat(value) if isinstance(value, dict) else {name: value}
    return found


def _computed_again(value: Any, known: dict[int, Any], reads: set[Any]) -> Any:
    """A tensor computed from other values where they are `known` by a tensor's id, and by new
    `reads` of variables.
    """
    ops = {tensor.op for tensor in ancestors(value, known)} if known or reads else set()
    for op in value.graph.get_operations() if ops else []:  # each comes after those that it needs
        inputs = [known.get(id(one), one) for one in op.inputs]
        if op not in ops or (
            op not in reads and all(new is old for new, old in zip(inputs, op.inputs, strict=True))
        ):
            continue
        attributes = {
            name: attribute for name, attribute in op.node_def.attr.items() if name != "_class"
        }
        with tf.device(op.device):
            types = [output.dtype for output in op.outputs]
            copy = op.graph.create_op(op.type, inputs, types, attrs=attributes, op_def=op.op_def)
        for old, new in zip(op.outputs, copy.outputs, strict=True):
            known.setdefault(id(old), new)
    return known.get(id(value), value)
