"""A model's step as the parity check runs it: on a few samples, as a part of any weight.

It is the model's own `train_step` or `test_step`, traced once, on the first device, for any number
of samples and any states. No variable changes: what the step assigns is dropped. What would differ
between parts of a batch is fixed: random numbers are the same for every sample, batch normalisation
takes fixed moments, and a divisor that a loss takes over all devices is the whole batch's. Sample
weights are made unequal, as those of the first batch may be equal by chance.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import tensorflow as tf

from gpubalance.engine.keras_patches import drawing_functions, name_of
from gpubalance.engine.sources import SAMPLES, dtypes_behind_samples, sources
from gpubalance.engine.step.built import unchanged
from gpubalance.engine.step.gradients import gradients_of
from gpubalance.engine.step.logs import DeferredResults, Logs
from gpubalance.engine.step.part import ParityProbe, Part, PartReplacements, part_of
from gpubalance.engine.step.rounding import perturbed, with_half_sums_in_float32
from gpubalance.engine.step.state import (
    handles_of,
    layer_variables,
    metric_variables,
)
from gpubalance.engine.step.step import replacements_for_parts
from gpubalance.engine.step.sums import SKETCH_SCOPE, sketches_of

_MAX_LOSSES = 64  # with divisors of their own; as many that layers add
# Operations that don't tell one step from another.
_PLUMBING = {
    "Const",
    "Identity",
    "NoOp",
    "Placeholder",
    "Cast",
    "ReadVariableOp",
    "StopGradient",
    "PreventGradient",
}
# Operations that set a variable of TensorFlow, or rows of it.
_SETTING = re.compile("Assign(Add|Sub)?VariableOp|ResourceScatter")
# Those of them that add to what it was.
_ADDING = re.compile("Assign(Add|Sub)|ResourceScatter(Nd)?(Add|Sub)")
_FIELDS = ("inputs", "labels", "sample weights")  # of a batch
# Dropout keeps what draws at least its rate: so all is kept, up to a rate of 0.95.
_DRAWN = 0.95


@dataclass(frozen=True)
class StepRun:
    """What one run gives: the sketches of each quantity, and what the next run may take from it."""

    sketches: dict[str, Any]  # by the quantity's name; all gradients are one quantity
    states: dict[int, Any]  # the new values of the states, by their variables' ids
    divisors: Any  # of the losses that have some: float32 [_MAX_LOSSES], padded with 0


class TracedStep:
    """The step for up to `count` samples of a batch."""

    def __init__(
        self, model: Any, batch: Any, device: str, count: int, *, trains: bool
    ) -> None:
        self.model = model
        self.trains = trains
        self._batch = batch
        self._tensors = _with_unequal_weights(batch)
        samples = int(self._tensors[0].shape[0])
        self.count = min(count, samples)
        # The places of the samples tried: the first ones in a row, as samples that belong together
        # may be, then others that are spread over the rest of the batch.
        row = self.count // 2
        others = self.count - row
        stride = (samples - row) // others
        self._tried_places = np.r_[:row, row + np.arange(others) * stride]
        # Each variable with its metric or layer.
        self.metric_variables = metric_variables(model)
        self.layer_variables = layer_variables(model)
        states = {
            id(variable): variable
            for variable, _ in self.metric_variables + self.layer_variables
        }
        self._states = list(states.values())
        self._device = device
        self._trace()

    def states(self) -> dict[int, Any]:
        """The states as they are, by their variables' ids."""
        return {
            id(variable): tf.convert_to_tensor(variable.value)
            for variable in self._states
        }

    def run(
        self,
        states: dict[int, Any],
        places: Any = slice(None),
        *,
        divisors: Any = None,
        exponents: Sequence[int] = (),
        copies: int = 1,
        weight: float | None = None,
        seed: int | None = None,
    ) -> StepRun:
        """Runs the step on some of the samples tried, as a part of all, or on copies of them.

        places     which of the samples tried
        divisors   of the losses, from an earlier run; without them losses take their own
        exponents  as in `CombineRules`
        weight     replaces the part's weight, its share of the samples tried
        seed       all terms of sums are perturbed at random, as rounding would

        Gradients are divided by the weight again: they are those of the part's mean.
        """
        if divisors is None:
            divisors = tf.zeros(_MAX_LOSSES)
        chosen = self._tried_places[places]
        if weight is None:
            weight = len(chosen) / self.count
        with tf.device("/CPU:0"):  # where the whole batch is
            samples = [
                tf.gather(tensor, np.tile(chosen, copies)) for tensor in self._tensors
            ]
        all_exponents = np.zeros(_MAX_LOSSES, np.float32)
        all_exponents[: len(exponents)] = exponents
        function = self._function
        if seed is not None:
            function = partial(self._perturbed, tf.constant(seed))
        gradients, others, own_divisors, *after = function(
            tf.constant(weight, tf.float32),
            divisors,
            tf.constant(all_exponents),
            *states.values(),
            *samples,
        )
        sketches = dict(zip(self._names, others.numpy(), strict=True))
        sketches["gradient"] = gradients.numpy() / weight
        return StepRun(sketches, dict(zip(states, after, strict=True)), own_divisors)

    def parts_with_nan(self) -> list[str]:
        """The batch's fields with NaN or infinity in the samples tried: `inputs`, `labels`, …"""
        found = []
        for name, field in _named_fields(self._batch):
            for values in _tensors_in(field):
                tried = tf.gather(values, self._tried_places)
                if values.dtype.is_floating and not tf.reduce_all(
                    tf.math.is_finite(tried)
                ):
                    found.append(name)
        return list(dict.fromkeys(found))

    @cached_property
    def _perturbed(self) -> Any:
        # The sums inside sketches are not the step's own.
        with tf.device(self._device):
            return perturbed(self._as_traced, but=SKETCH_SCOPE)

    def _trace(self) -> None:
        per_loss = tf.TensorSpec((_MAX_LOSSES,), tf.float32)
        specs = [tf.TensorSpec((), tf.float32), per_loss, per_loss]
        for variable in self._states:
            specs.append(tf.TensorSpec(variable.shape, variable.dtype))
        for tensor in self._tensors:
            specs.append(tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype))
        with tf.device(self._device):
            function = tf.compat.v1.wrap_function(self._traced, specs)
        # Without what only changes variables, writes summaries or prints.
        pruned = function.prune(function.inputs[: len(specs)], function.outputs)
        self._as_traced = pruned
        with tf.device(self._device):
            self._function = with_half_sums_in_float32(pruned)
        self.operations = dict(_operations(function.graph))  # how many, by type

    def _traced(
        self, weight: Any, divisors: Any, exponents: Any, *values: Any
    ) -> list[Any]:
        """The sketches of all quantities, the losses' divisors, and the new states."""
        before = values[: len(self._states)]
        self.samples = values[len(before) :]
        samples = iter(self.samples)
        data = tf.nest.map_structure(
            lambda tensor: None if tensor is None else next(samples), self._batch
        )
        self.probing = ParityProbe(divisors, exponents, frozenset(map(id, before)))
        replacements = replacements_for_parts(self.model, takes_gradients=self.trains)
        with (
            unchanged(self.model, zip(self._states, before, strict=True)) as scope,
            part_of(weight, replacements | fixed_draws(), probing=self.probing) as part,
        ):
            grads: list[Any] = []
            if self.trains:
                logs = self.model.train_step(data)
                grads, _ = gradients_of(self.model, part)
            else:
                logs = self.model.test_step(data)
            self.logs = Logs(self.model, DeferredResults(self.model)).note(logs, part)
            after = [scope.get_current_value(variable) for variable in self._states]
        self.is_scaled = part.is_scaled
        self.changed = {id(change.variable) for change in part.changes}
        self.set_by_samples, self.counting = _set_variables(
            self.model, self.probing.states
        )
        quantities = self._quantities(before, after)
        self._names = list(quantities)
        self.dtypes = self._dtypes(quantities)
        own_divisors = self.probing.own_divisors
        unused = [tf.zeros(())] * (_MAX_LOSSES - len(own_divisors))
        return [
            sketches_of(grad for grad in grads if grad is not None),
            sketches_of(quantities.values()),
            tf.stack(own_divisors + unused),
            *map(tf.identity, after),
        ]

    def _quantities(
        self, before: Sequence[Any], after: Sequence[Any]
    ) -> dict[str, Any]:
        """What the step gives beside gradients, by name."""
        quantities = {}
        for place, added in enumerate(self.probing.added):
            quantities[f"added {place}"] = tf.reduce_sum(added.tensor)
        for place, reduced in enumerate(self.probing.losses):
            quantities[f"loss {place}"] = reduced.result
        for name, value in self.logs.items():
            quantities[f"log {name}"] = value
        for variable, old, new in zip(self._states, before, after, strict=True):
            change = tf.cast(new, tf.float32) - tf.cast(old, tf.float32)
            quantities[state_name(variable)] = change
        return quantities

    def _dtypes(self, quantities: dict[str, Any]) -> dict[str, set[str]]:
        """By quantity, the dtypes whose rounding differs between a part and the whole."""
        dtypes = {}
        for name, value in quantities.items():
            dtypes[name] = dtypes_behind_samples(value)
        of_gradients = {layer.compute_dtype for layer in self.model._flatten_layers()}
        for target in self.probing.targets:
            of_gradients |= dtypes_behind_samples(target)
        dtypes["gradient"] = of_gradients
        return dtypes


def _set_variables(model: Any, states: frozenset[int]) -> tuple[list[str], list[str]]:
    """The tf.Variables, such as `my_layer.centre`, that this graph sets from samples, and counters.

    A counter's new value is computed from its old one and from no samples. Variables of Keras are
    not among them, as the scope takes what is assigned to them.
    """
    graph = tf.compat.v1.get_default_graph()
    outside = {id(inner): id(outer) for outer, inner in graph.captures}
    by_samples = set()
    counting = set()
    for operation in graph.get_operations():
        if _SETTING.match(operation.type):
            handle, *values = operation.inputs
            variable = outside.get(id(handle))
            origins = set().union(*(sources(value, states) for value in values))
            if SAMPLES in origins:
                by_samples.add(variable)
            elif _ADDING.match(operation.type) or variable in origins:
                counting.add(variable)
    return _names_of(model, by_samples), _names_of(model, counting - by_samples)


def _names_of(model: Any, found: set[int | None]) -> list[str]:
    """What layers call the tf.Variables with these handles; `a variable` if none has them."""
    names = []
    for layer in model._flatten_layers() if found else ():
        for name, value in vars(layer).items():
            if isinstance(value, tf.Variable) and found & handles_of(value):
                names.append(f"{layer.name}.{name}")
    return names or ["a variable"] * bool(found)


def state_name(variable: Any) -> str:
    """The name of the quantity by which a step changes a variable."""
    return f"state {id(variable)}"


def _with_unequal_weights(batch: Any) -> list[Any]:
    """The tensors of a batch, with sample weights from a half to three halves of its own."""
    tensors = _tensors_in(batch)
    has_weights = isinstance(batch, tuple | list) and len(batch) == len(_FIELDS)
    weights = _tensors_in(batch[-1]) if has_weights else []
    for place in range(len(tensors) - len(weights), len(tensors)):
        if tensors[place].dtype.is_floating:
            tensors[place] = _unequal(tensors[place])
    return tensors


def _named_fields(batch: Any) -> list[tuple[str, Any]]:
    """The fields of a batch, by name.

    More than three are numbered: only a user's own step takes these, and knows what they are.
    """
    fields = batch if isinstance(batch, tuple | list) else (batch,)
    if len(fields) > len(_FIELDS):
        return [(f"part {place}", field) for place, field in enumerate(fields, 1)]
    return list(zip(_FIELDS, fields, strict=False))


def _tensors_in(values: Any) -> list[Any]:
    known = [value for value in tf.nest.flatten(values) if value is not None]
    return list(map(tf.convert_to_tensor, known))


def _unequal(weights: Any) -> Any:
    """The weights times a factor for each sample: the golden ratio spreads any number of them."""
    factors = 0.5 + np.arange(int(weights.shape[0])) * 0.6180339887 % 1
    by_sample = tf.cast(tf.transpose(weights), tf.float64) * factors
    return tf.cast(tf.transpose(by_sample), weights.dtype)


def _operations(graph: Any) -> Counter[str]:
    """How many operations of each type are in a graph and in the functions that it calls."""
    definition = graph.as_graph_def()
    types = [node.op for node in definition.node]
    for function in definition.library.function:
        types += [node.op for node in function.node_def]
    return Counter(kind for kind in types if kind not in _PLUMBING)


def fixed_draws() -> PartReplacements:
    """Makes TensorFlow draw 0.95 for each float, the smallest whole numbers, and not shuffle.

    The part is warned where numbers are drawn for the batch as a whole.
    """
    return {
        function: partial(_fixed, signature)
        for function, signature in drawing_functions().items()
    }


def _fixed(
    signature: inspect.Signature, part: Part, draw: Any, *arguments: Any, **named: Any
) -> Any:
    """What a drawing function with that signature returns in the parity check."""
    by_name = signature.bind(*arguments, **named).arguments
    if "value" in by_name:  # it shuffles
        return tf.identity(by_name["value"])
    drawn = draw(*arguments, **named)
    # A candidate sampler: classes for the whole batch, and the expected counts of these and of the
    # labels.
    if isinstance(drawn, tuple):
        part.warn(_for_the_batch("the train_step"))
        classes, *counts = drawn
        first = tf.range(tf.size(classes), dtype=classes.dtype)
        return type(drawn)(first, *map(tf.ones_like, counts))
    if part.calling and drawn.shape.is_fully_defined():
        part.warn(_for_the_batch(f"the loss {name_of(part.calling[0])}"))
    if drawn.dtype.is_floating:
        return tf.ones_like(drawn) * _DRAWN
    return tf.zeros_like(drawn) + tf.cast(by_name.get("minval", 0), drawn.dtype)


def _for_the_batch(what: str) -> str:
    return (
        f"{what} draws random numbers for the whole batch. With a split each device "
        "draws its own, so gpubalance cannot check that the result is that of one "
        "device"
    )
