"""A Keras model as a list of calls of its layers, in blocks between which it may be cut."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine import keras_patches
from gpubalance.errors import BadInput, Refused
from gpubalance.planning.pipeline.problem import Block, Edge, Graph

MOST = 40


@dataclass(frozen=True)
class Blocks:
    """A model's calls in blocks: block i has the calls from `starts[i]` to the next block's."""

    calls: Calls
    starts: tuple[int, ...]

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The calls of the blocks from `first` to `last`: the first, and the one after the last."""
        return self.starts[first], self._ends[last]

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return (*self.starts[1:], len(self.calls.calls))

    @cached_property
    def graph(self) -> Graph:
        """The blocks as planning needs them."""
        sizes = self.calls.sizes
        all_operations = sizes[:, 0].sum() or 1
        blocks = []
        for first, end in zip(self.starts, self._ends, strict=True):
            calls = self.calls.calls[first:end]
            names = " … ".join(dict.fromkeys((calls[0].name, calls[-1].name)))
            operations, weights, outputs = sizes[first:end].sum(axis=0).tolist()
            share = float(operations / all_operations)
            blocks.append(Block(names, end - first, int(weights), int(outputs), share))
        return Graph(tuple(blocks), self._edges())

    def _edges(self) -> tuple[Edge, ...]:
        calls = range(len(self.calls.calls))
        block_of = (np.searchsorted(self.starts, calls, side="right") - 1).tolist()
        edges = []
        for slot, maker in self.calls.made.items():
            if maker >= 0:
                source = block_of[maker]
                targets = {block_of[taker] for taker in self.calls.takers[slot]} - {
                    source
                }
                if targets:
                    size = self.calls.bytes_of(slot)
                    edges.append(Edge(source, tuple(sorted(targets)), size))
        return tuple(edges)


def blocks_of(calls: Calls, cuts: Sequence[str] = ()) -> Blocks:
    """At most MOST blocks of about equal size, cut where little crosses, or before layers `cuts`.

    Raises Refused for a graph that can't be cut, BadInput for a cut that is not possible.
    """
    in_the_way = calls.in_the_way()
    if cuts:
        starts = {_cut_before(name, calls, in_the_way) for name in cuts}
        return Blocks(calls, (0, *sorted(starts)))
    allowed = [cut for cut in range(1, len(calls.calls)) if cut not in in_the_way]
    if not allowed:
        reason = ""
        if in_the_way:
            layer = next(iter(in_the_way.values()))
            reason = (
                f": every cut would come between two calls of a layer, such as {layer}"
            )
        raise Refused(
            f"the model can't be cut{reason}",
            remedy="cut a model between layers that are called once: a layer's "
            "weights are on one device",
        )
    if len(allowed) >= MOST:
        allowed = _narrowest(calls, allowed)
    return Blocks(calls, (0, *allowed))


def _cut_before(name: str, calls: Calls, in_the_way: dict[int, str]) -> int:
    """The number of the layer's first call."""
    names = [call.name for call in calls.calls]
    if name == names[0] or name not in names:
        why = "the model has no layer of this name"
        if name == names[0]:
            why = "this is the model's first layer"
        raise BadInput(
            f"--cuts {name}: the model is cut before each layer that you name, and "
            f"{why}",
            remedy="a layer of a nested model is called model/layer",
        )
    cut = names.index(name)
    if cut in in_the_way:
        raise BadInput(
            f"--cuts {name}: the layer {in_the_way[cut]} has calls on both sides of that cut",
            remedy="cut before all of its calls, or after all of them",
        )
    return cut


def _narrowest(calls: Calls, allowed: Sequence[int]) -> list[int]:
    """One cut in each of MOST − 1 stretches of about equal size, where the fewest bytes cross."""
    wholes = np.maximum(calls.sizes.sum(axis=0), 1.0)
    parts = (calls.sizes / wholes).sum(axis=1)
    until = np.cumsum(parts) / parts.sum()
    crossing_bytes = Blocks(calls, tuple(range(len(calls.calls)))).graph.crossing_bytes
    # Of each stretch: its costs, and the cut
    best: dict[int, tuple[float, float, int]] = {}
    for cut in allowed:
        whole, place = divmod(float(until[cut - 1]) * MOST - 0.5, 1.0)
        stretch = min(max(int(whole), 0), MOST - 2)
        candidate = crossing_bytes[cut], abs(place - 0.5), cut
        best[stretch] = min(candidate, best.get(stretch, candidate))
    return sorted(cut for _, _, cut in best.values())


@dataclass(frozen=True)
class Call:
    """One call of a layer or an operation.

    A slot is a tensor's number; `slots` has them by symbolic tensors' ids. `training` is the flag
    that the graph gives it, itself or in a call of a nested model around it.
    """

    name: str
    operation: Any
    arguments: Any
    slots: Mapping[int, int]
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    training: bool | None = None

    @property
    def variables(self) -> list[Any]:
        """The layer's variables, and those that the call takes as arguments."""
        variables = list(getattr(self.operation, "variables", ()))
        for value in keras.tree.flatten((self.arguments.args, self.arguments.kwargs)):
            if isinstance(value, keras.Variable):
                variables.append(value)
        return variables

    def run(self, values: dict[int, Any], *, training: bool) -> None:
        """Runs the call with the `values` by slot, and adds its outputs to them."""
        taken = {}
        for tensor in self.arguments.keras_tensors:
            taken[id(tensor)] = values[self.slots[id(tensor)]]
        if self.training is not None:
            training = self.training
        outputs = keras_patches.run_as_graph(
            self.operation, training=training, arguments=self.arguments, values=taken
        )
        values.update(zip(self.gives, outputs, strict=True))


class Calls:
    """The calls of a model's graph, `function`, and of nested models', depth first.

    So a branch is in one piece. `tensors` has the symbolic ones by slot. `made` and `takers` give
    for a slot the number of the call that makes its tensor, −1 for a model's input, and of those
    that take it, in order. The loss belongs to the last call, and takes all of the model's outputs.
    """

    def __init__(self, model: Any) -> None:
        """Raises Refused for a model without a graph."""
        self.function: Any = keras_patches.graph_of(model)
        if self.function is None:
            raise Refused(
                f"the model {model.name} is of the class {type(model).__name__}, with code of "
                "its own instead of a graph of layers",
                remedy="use a functional or Sequential model: keras.Model(inputs, "
                "outputs)",
            )
        self.calls: list[Call] = []
        self.tensors: list[Any] = []
        self.inputs = self._new(self.function.inputs)
        self.outputs = self._read(self.function, self.inputs, "")
        self.made = dict.fromkeys(self.inputs, -1)
        self.takers = defaultdict[int, list[int]](list)
        for number, call in enumerate(self.calls):
            self.made.update(dict.fromkeys(call.gives, number))
            for slot in call.takes:
                self.takers[slot].append(number)
        for slot in self.outputs:
            self.takers[slot].append(len(self.calls) - 1)

    def _new(self, tensors: Sequence[Any]) -> tuple[int, ...]:
        """Gives tensors slots."""
        self.tensors += tensors
        end = len(self.tensors)
        return tuple(range(end - len(tensors), end))

    def _read(
        self,
        function: Any,
        inputs: Sequence[int],
        path: str,
        training: bool | None = None,
    ) -> tuple[int, ...]:
        """Adds a Functional's calls on inputs of these slots, and returns its outputs' slots.

        `training` is the flag that the Functional is called with in the graph around it.
        """
        slots = dict(zip(map(id, function.inputs), inputs, strict=True))
        for node in keras_patches.nodes_in_order(function):
            name = path + node.operation.name
            inner = keras_patches.graph_of(node.operation)
            flag = keras_patches.flag_of_graph(node.arguments)
            if flag is None:
                flag = training
            taken = None if inner is None else _inputs_of(inner, node)
            if taken is None:
                gives = self._new(node.outputs)
                takes = tuple(
                    dict.fromkeys(slots[id(tensor)] for tensor in node.input_tensors)
                )
                self.calls.append(
                    Call(
                        name, node.operation, node.arguments, slots, takes, gives, flag
                    )
                )
            else:
                given = [slots[id(tensor)] for tensor in taken]
                gives = self._read(inner, given, f"{name}/", flag)
            slots.update(zip(map(id, node.outputs), gives, strict=True))
        return tuple(slots[id(tensor)] for tensor in function.outputs)

    def packed(self, values: Mapping[int, Any]) -> Any:
        """The model's outputs in its own structure."""
        outputs = [values[slot] for slot in self.outputs]
        return keras.tree.pack_sequence_as(self.function.output, outputs)

    def spec_of(self, slot: int, value: Any) -> tf.TensorSpec:
        """That of a slot's tensors, with the dtype of one, as a Lambda's symbol has another."""
        return tf.TensorSpec(self.tensors[slot].shape, value.dtype)

    def bytes_of(self, slot: int) -> int:
        """The bytes of a slot's tensor for one sample."""
        tensor = self.tensors[slot]
        return _numbers(tensor.shape[1:]) * int(tf.as_dtype(tensor.dtype).size)

    @cached_property
    def sizes(self) -> Any:
        """A row for each call: operations for a sample, bytes of weights, and bytes of outputs.

        A weight counts in the first call that has it.
        """
        rows = []
        seen = set[int]()
        for call in self.calls:
            weights = 0
            for variable in call.variables:
                if id(variable) not in seen:
                    seen.add(id(variable))
                    weights += variable_bytes(variable)
            outputs = sum(map(self.bytes_of, call.gives))
            rows.append((operations_of(call, self), weights, outputs))
        return np.array(rows, float)

    def in_the_way(self) -> dict[int, str]:
        """The calls before which no cut is possible, with the layer that is on both sides."""
        first: dict[int, int] = {}
        layers: dict[int, str] = {}
        for number, call in enumerate(self.calls):
            for variable in call.variables:
                since = first.setdefault(id(variable), number)
                layers.update(dict.fromkeys(range(since + 1, number + 1), call.name))
        return layers


def _inputs_of(inner: Any, node: Any) -> list[Any] | None:
    """The tensors that a nested model's inputs get; None if the call would change them.

    Such a call stays in one piece, and so does one with its own mask.
    """
    named = {name for name, value in node.arguments.kwargs.items() if value is not None}
    if len(node.arguments.args) != 1 or named - {"training"}:
        return None
    tensors: list[Any] = keras.tree.flatten(node.arguments.args[0])
    if len(tensors) != len(inner.inputs) or not all(map(_fits, tensors, inner.inputs)):
        return None
    return tensors


def _fits(tensor: Any, symbol: Any) -> bool:
    """Whether a nested model takes the tensor for its input as it is."""
    if not isinstance(tensor, keras.KerasTensor) or len(tensor.shape) != len(
        symbol.shape
    ):
        return False
    are_floating = "float" in tensor.dtype and "float" in symbol.dtype
    return are_floating or bool(tensor.dtype == symbol.dtype)


def variable_bytes(variable: Any) -> int:
    """A variable's bytes."""
    return int(math.prod(variable.shape) * tf.as_dtype(variable.dtype).size)


def operations_of(call: Call, calls: Calls) -> float:
    """Rough operations of one sample's forward pass.

    Two for each weight of a matrix at each position, and one for each number of the output.
    """
    outputs = [calls.tensors[slot].shape[1:] for slot in call.gives]
    operations = float(sum(map(_numbers, outputs)))
    if isinstance(call.operation, keras.layers.Embedding):
        return operations
    is_transposed = "Transpose" in type(call.operation).__name__
    shapes = outputs
    if call.takes and (is_transposed or isinstance(call.operation, keras.layers.RNN)):
        shapes = [calls.tensors[call.takes[0]].shape[1:]]
    positions = _numbers(shapes[0][:-1]) if shapes else 1
    for variable in call.variables:
        if len(variable.shape) > 1:
            operations += 2 * positions * math.prod(variable.shape)
    return operations


def _numbers(shape: Sequence[int | None]) -> int:
    """How many numbers have this shape; an open dimension counts as 1."""
    return math.prod(size or 1 for size in shape)
