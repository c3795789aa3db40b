"""A step traced once for a few samples, of any number, as a part of any weight, from any states.

It is the model's own `train_step` or `test_step`, on the first device. No variable changes: what
the step assigns is dropped. What can't be alike in parts of a batch is made so: random numbers are
the same for every sample, batch normalisation takes fixed moments, and a divisor that a loss takes
over all devices is the whole batch's. Sample weights are made unlike, as those of the first batch
may be alike by chance.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.ops import (
    gen_candidate_sampling_ops,
    gen_random_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)

from gpubalance.engine.keras_inside import name_of
from gpubalance.engine.step.built import unchanged
from gpubalance.engine.step.gradients import gradients_of
from gpubalance.engine.step.logs import Logs
from gpubalance.engine.step.part import ParityProbe, Part, in_parts, part_of
from gpubalance.engine.step.state import metrics_of
from gpubalance.engine.step.step import dividing
from gpubalance.results.decomposition import UNTRIED

_MOST = 64  # losses with divisors of their own, and losses that layers add
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
# TensorFlow's functions that draw numbers, by module and name.
_MODULES = (
    *(
        gen_random_ops,
        gen_stateful_random_ops,
        gen_stateless_random_ops,
        gen_stateless_random_ops_v2,
    ),
    gen_candidate_sampling_ops,
)
_NO_NUMBERS = "_get_|_grad$|skip|eager_fallback"
_KINDS = "random_|stateless_|stateful_|truncated_|parameterized_|multinomial$|.*_candidate_sampler$"
_DRAWING = re.compile(f"(?!.*({_NO_NUMBERS}))({_KINDS})")
# Keeps what all but the rarest dropout keeps.
_DRAWN = 0.95


@dataclass(frozen=True)
class Ran:
    """What one run gives: the marks [..., (norm, two linear marks)] of each quantity, and for the
    next run the values of the states by their variables' ids, and the losses' divisors. All
    gradients are one quantity.
    """

    marks: dict[str, Any]
    states: dict[int, Any]
    divisors: Any


class Trial:
    """The step for up to `count` samples of a batch. `step` has its operations by type
    and count.
    """

    def __init__(self, model: Any, batch: Any, device: str, count: int, *, trains: bool) -> None:
        self.model, self._batch, self.trains = model, batch, trains
        self._given = _with_unlike_weights(batch)
        samples = int(self._given[0].shape[0])
        self.count = min(count, samples)
        # The first ones in a row, as samples that belong together may be, and others from all of
        # the batch.
        row, others = self.count // 2, self.count - self.count // 2
        self._spread = np.r_[:row, row + np.arange(others) * ((samples - row) // others)]
        self.metrics = [
            (variable, metric) for metric in metrics_of(model) for variable in metric._variables
        ]
        self.kept = [
            (one, layer)
            for layer in model._flatten_layers()
            for one in layer._non_trainable_variables
        ]
        self._states = list({id(one): one for one, _ in (*self.metrics, *self.kept)}.values())
        self._trace(device)

    def now(self) -> dict[int, Any]:
        """The states as they are."""
        return {id(one): tf.convert_to_tensor(one.value) for one in self._states}

    def run(
        self,
        at: Any,
        states: dict[int, Any],
        divisors: Any = None,
        exponents: Any = (),
        copies: int = 1,
    ) -> Ran:
        """Runs the step on the samples `at` these places as a part of all, or on copies; gradients
        are those of a mean.

        Without `divisors` losses have their own. `exponents` are as in `Verdict`.
        """
        some = self._spread[at]
        weight = len(some) / self.count
        with tf.device("/CPU:0"):  # where the whole batch is
            samples = [tf.gather(one, np.tile(some, copies)) for one in self._given]
        gradients, others, divided, *now = self._function(
            tf.constant(weight, tf.float32),
            tf.zeros(_MOST) if divisors is None else divisors,
            tf.constant([*exponents, *[0] * (_MOST - len(exponents))], tf.float32),
            *states.values(),
            *samples,
        )
        marks = dict(zip(self._names, others.numpy(), strict=True)) | {
            "gradient": gradients.numpy() / weight
        }
        return Ran(marks, dict(zip(states, now, strict=True)), divided)

    def _trace(self, device: str) -> None:
        several = tf.TensorSpec((_MOST,), tf.float32)
        specs = [tf.TensorSpec((), tf.float32), several, several]
        specs += [tf.TensorSpec(one.shape, one.dtype) for one in self._states]
        specs += [tf.TensorSpec((None, *one.shape[1:]), one.dtype) for one in self._given]
        with tf.device(device):
            function = tf.compat.v1.wrap_function(self._traced, specs)
        # Without what only changes variables, writes summaries or prints.
        self._function = function.prune(function.inputs[: len(specs)], function.outputs)
        self.step = dict(_operations(function.graph))

    def _traced(self, weight: Any, divisors: Any, exponents: Any, *values: Any) -> list[Any]:
        """The marks of all quantities, the losses' divisors, and the new states."""
        states, self.samples = values[: len(self._states)], values[len(self._states) :]
        given = iter(self.samples)
        data = tf.nest.map_structure(lambda one: one if one is None else next(given), self._batch)
        self.probing = ParityProbe(divisors, exponents, frozenset(map(id, states)))
        with (
            unchanged(self.model, zip(self._states, states, strict=True)) as scope,
            dividing(self.model, trains=self.trains),
            part_of(weight, probing=self.probing) as part,
        ):
            with _alike():
                if self.trains:
                    grads, _, logs = gradients_of(self.model, part, data)
                else:
                    grads, logs = [], self.model.test_step(data)
            self.logs = Logs(self.model, UNTRIED).note(logs, part)
            now = [scope.get_current_value(variable) for variable in self._states]
        self.changed = {id(change.variable) for change in part.changes}
        found = {f"added {i}": tf.reduce_sum(one.loss) for i, one in enumerate(self.probing.added)}
        found |= {f"loss {i}": one.result for i, one in enumerate(self.probing.losses)}
        found |= {f"log {name}": value for name, value in self.logs.items()}
        for variable, before, after in zip(self._states, states, now, strict=True):
            found[f"state {id(variable)}"] = tf.cast(after, tf.float32) - tf.cast(
                before, tf.float32
            )
        self._names = list(found)
        divided = [*self.probing.divided, *[tf.zeros(())] * (_MOST - len(self.probing.divided))]
        of_gradients = _marks_of([grad for grad in grads if grad is not None])
        return [of_gradients, _marks_of(found.values()), tf.stack(divided), *map(tf.identity, now)]


@contextmanager
def _alike() -> Iterator[None]:
    """Makes TensorFlow draw 0.95 for every fraction, the least whole numbers, and the given order
    for a shuffle.
    """
    with ExitStack() as undo:
        for module in _MODULES:
            functions = {name: one for name, one in vars(module).items() if inspect.isfunction(one)}
            drawing = {
                name: _alike_of(name, one)
                for name, one in functions.items()
                if _DRAWING.match(name)
            }
            undo.enter_context(in_parts(module, **drawing))
        yield


def _alike_of(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def drawn(part: Part, draw: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What the original would draw, made of the same number."""
        given = signature.bind(*arguments, **named).arguments
        if "shuffle" in name:
            return tf.identity(given["value"])
        found = draw(*arguments, **named)
        # Classes for the whole batch, and how often to expect them and the labels.
        if isinstance(found, tuple):
            part.tell(_for_the_batch("the train_step"))
            classes, *counts = found
            first = tf.range(tf.size(classes), dtype=classes.dtype)
            return type(found)(first, *map(tf.ones_like, counts))
        if part.calling and found.shape.is_fully_defined():
            part.tell(_for_the_batch(f"the loss {name_of(part.calling[0])}"))
        least = tf.cast(given.get("minval", 0), found.dtype)
        return (
            tf.ones_like(found) * _DRAWN
            if found.dtype.is_floating
            else tf.zeros_like(found) + least
        )

    return drawn


def _for_the_batch(what: str) -> str:
    return (
        f"{what} draws random numbers for the batch as a whole, so it is not known whether a "
        "split, in which each "
        "device draws its own, gives what one device does"
    )


def _with_unlike_weights(batch: Any) -> list[Any]:
    """The tensors of a batch, with sample weights from a half to three halves of its own."""
    there = [tf.convert_to_tensor(one) for one in tf.nest.flatten(batch) if one is not None]
    _, _, weights = keras.utils.unpack_x_y_sample_weight(batch)
    count = len([one for one in tf.nest.flatten(weights) if one is not None])
    others, own = there[: len(there) - count], there[len(there) - count :]
    return [*others, *(_unlike(one) if one.dtype.is_floating else one for one in own)]


def _unlike(weights: Any) -> Any:
    """The weights times a factor for each sample: the golden ratio spreads any number of them."""
    factors = 0.5 + np.arange(int(weights.shape[0])) * 0.6180339887 % 1
    return tf.cast(
        tf.transpose(tf.cast(tf.transpose(weights), tf.float64) * factors), weights.dtype
    )


def _marks_of(values: Iterable[Any]) -> Any:
    """The norm of each value and its products with two fixed vectors of random numbers, which add
    up as values do.
    """
    return tf.reshape([_marks(value) for value in values], (-1, 3))


def _marks(value: Any) -> Any:
    # Each row in its place, which other samples would give another order.
    if isinstance(value, tf.IndexedSlices):
        value = tf.math.unsorted_segment_sum(value.values, value.indices, value.dense_shape[0])
    value = tf.cast(value, tf.float32)
    products = [value * tf.random.stateless_normal(tf.shape(value), (seed, 0)) for seed in (1, 2)]
    return tf.stack([tf.norm(value), *map(tf.reduce_sum, products)])


def _operations(graph: Any) -> Counter[str]:
    """How many operations of each type a graph has, and the functions that it calls."""
    made = graph.as_graph_def()
    nodes = [
        *made.node,
        *(node for function in made.library.function for node in function.node_def),
    ]
    return Counter(node.op for node in nodes if node.op not in _PLUMBING)
