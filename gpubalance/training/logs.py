"""What a step returns for the logs, made of what it returns on each replica."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.sources import ancestors, sources
from gpubalance.errors import BadInput
from gpubalance.training.changes import handles
from gpubalance.training.kinds import Kind, is_of_each, kind_of
from gpubalance.training.part import Part

_LATE = "computed with what it reads after it applies gradients: a split applies them later"


class Logs:
    """The logs of one trace, known from its first part of a batch: what the other parts return is like it."""

    def __init__(self, model: Any, place: Any, *, whole: bool) -> None:
        self._model = model
        self._place = place
        self._whole = whole
        self._values: Mapping[str, Any] | None = None
        self._results: dict[int, tuple[Any, Any, int]] = {}
        self._late: set[Any] = set()
        self._kinds: dict[str, Kind] = {}

    def of_part(self, values: Mapping[str, Any], part: Part) -> dict[str, Any]:
        """The part's share of each number that depends on samples: over all parts they sum to the whole batch's."""
        values = _flat(values)
        if self._values is None:
            self._values, self._results = values, part.results
            operations = tf.compat.v1.get_default_graph().get_operations() if part.taken else []
            self._late = set(operations[part.taken_after :])
            self._kinds = {name: self._kind(name, value, part) for name, value in values.items()}
            late = (change for change in part.changes if change.late and self._reads_changed(change.value))
            for name in {change.variable.path.partition("/")[0] for change in late}:
                self._warn(name, _LATE)
        shares = {}
        for name, kind in self._kinds.items():
            if kind is not Kind.FIXED:
                share = tf.cast(values[name], tf.float32)
                is_sum = kind in (Kind.SUM, Kind.COUNT) and not self._whole
                shares[name] = share if is_sum else share * part.weight
        return shares

    def of_all(self, shares: Mapping[str, Any]) -> dict[str, Any]:
        """The logs of the whole batch from each replica's shares, outside of a replica.

        What does not depend on samples but on metrics' results or changed weights is computed again, with those of now.
        """
        reduce, total = self._place.strategy.reduce, tf.distribute.ReduceOp.SUM
        return {
            name: reduce(total, shares[name], axis=None) if name in shares else self._again(value)
            for name, value in (self._values or {}).items()
        }

    def _kind(self, name: str, value: Any, part: Part) -> Kind:
        inside = self._behind(value)
        if not tf.is_symbolic_tensor(value) or id(inside) in self._results:
            return Kind.FIXED
        if is_of_each(value) and (value.shape.rank or part.micro):  # tf.numpy_function's has no known rank
            raise BadInput(
                f"the model {self._model.name} logs {name}, which has a value for each sample",
                remedy="log one number, such as their mean",
            )
        kind = kind_of(inside, part.weight)
        if self._results_in(inside) and (kind is not Kind.FIXED or inside.graph is not value.graph):
            kind = Kind.OTHER
        if kind is not Kind.FIXED and self._reads_changed(value):
            self._warn(name, _LATE)
        if kind is Kind.OTHER and not self._whole and (part.micro or self._place.replicas > 1):
            self._warn(
                name,
                "neither a metric's result nor a mean or sum over samples: the devices' values are averaged, weighted "
                "by samples",
            )
        return kind

    def _warn(self, name: str, what: str) -> None:
        warnings.warn(
            f"the model {self._model.name} logs {name}, which is {what}, so the log is not exactly that of one device",
            stacklevel=2,
        )

    def _behind(self, value: Any) -> Any:
        """The tensor that a function returned which the step called: its own step may be a `tf.function`."""
        while tf.is_symbolic_tensor(value) and id(value) not in self._results:
            op = value.op
            if op.type == "Identity":
                value = op.inputs[0]
            elif op.type in ("PartitionedCall", "StatefulPartitionedCall"):
                value = op.graph._get_function(op.node_def.attr["f"].func.name).graph.outputs[value.value_index]
            else:
                break
        return value

    def _results_in(self, value: Any) -> list[int]:
        return [id(tensor) for tensor in ancestors(value, self._results) if id(tensor) in self._results]

    def _late_reads(self, value: Any) -> set[Any]:
        """The reads of variables, on the way to a value, that come after the step has applied its gradients."""
        reads = {one.op for one in ancestors(value, self._results) if one.op.type == "ReadVariableOp"}
        return reads & self._late

    def _reads_changed(self, value: Any) -> bool:
        """Whether a value needs what applying gradients changes, as it is after that."""
        changed = handles((*self._model.trainable_variables, *self._model.optimizer.variables)) if self._late else set()
        return any(sources(read.outputs[0]) & changed for read in self._late_reads(value))

    def _again(self, value: Any) -> Any:
        if not tf.is_symbolic_tensor(value):
            return tf.convert_to_tensor(value)
        inside, over_all = self._behind(value), {}
        value = inside if id(inside) in self._results else value
        for one in self._results_in(value):
            _, metric, at = self._results[one]
            over_all[one] = tf.convert_to_tensor(keras.tree.flatten(metric.result())[at])
        return _computed_again(value, over_all, self._late_reads(value))


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with those of dicts inside, as the result of all compiled metrics is one, by Keras' own rule."""
    flat: dict[str, Any] = {}
    for name, value in sorted(values.items()):
        flat |= _flat(value) if isinstance(value, dict) else {name: value}
    return flat


def _computed_again(value: Any, known: dict[int, Any], reads: set[Any]) -> Any:
    """A tensor computed from other values where they are `known` by a tensor's id, and by new `reads` of variables."""
    ops = {tensor.op for tensor in ancestors(value, known)} if known or reads else set()
    for op in value.graph.get_operations() if ops else []:  # each comes after those that it needs
        inputs = [known.get(id(one), one) for one in op.inputs]
        if op not in ops or (op not in reads and all(new is old for new, old in zip(inputs, op.inputs, strict=True))):
            continue
        attributes = {name: attribute for name, attribute in op.node_def.attr.items() if name != "_class"}
        with tf.device(op.device):
            types = [output.dtype for output in op.outputs]
            copy = op.graph.create_op(op.type, inputs, types, attrs=attributes, op_def=op.op_def)
        for old, new in zip(op.outputs, copy.outputs, strict=True):
            known.setdefault(id(old), new)
    return known.get(id(value), value)
