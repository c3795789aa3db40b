"""Pipelines on logical CPU devices beside one device that trains on the same micro-batches.

Tests and benches use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpubalance.planning.pipeline.problem import Segment, Task, links_between
from gpubalance.planning.pipeline.schedule import depths_of, tasks_of
from tests.support.late import keras, tf
from tests.training.cases import largest

Model = Callable[[], Any]


def alike(make: Model, count: int) -> list[Any]:
    """So many models that are the same, the states of their random numbers too."""
    models = []
    for _ in range(count):
        keras.utils.set_random_seed(1)
        models.append(make())
    for model in models[1:]:
        for one, other in zip(models[0].variables, model.variables, strict=True):
            other.assign(one)
    return models


def graph_of(model: Any) -> tuple[Any, Any, Any]:
    """A model's calls, its blocks and samples for it; compiles it."""
    from gpubalance.engine.data import Samples
    from gpubalance.engine.models import compile_for
    from gpubalance.engine.pipeline.blocks import Calls, blocks_of

    calls = Calls(model)
    return calls, blocks_of(calls), Samples(model, compile_for(model), seed=0)


def in_stages(blocks: int, stages: int) -> list[Segment]:
    """About as many blocks on each device."""
    ends = [round(blocks * part / stages) for part in range(stages + 1)]
    return [Segment(ends[i], ends[i + 1] - 1, i) for i in range(stages)]


def orders_of(
    segments: Sequence[Segment], graph: Any, micro_batches: int
) -> list[tuple[Task, ...]]:
    """Each device's tasks, in order.

    Of two segments of one device the first's forward comes before the second's.
    """
    depths = depths_of(segments, links_between(graph, segments))
    count = 1 + max(one.device for one in segments)
    orders: list[tuple[Task, ...]] = [()] * count
    for number, (segment, depth) in enumerate(zip(segments, depths, strict=True)):
        orders[segment.device] += tasks_of(number, micro_batches, depth)
    return orders


@dataclass
class Trained:
    """What both have come to after the same steps."""

    weights: float
    slots: float
    losses: float
    model: Any
    again: Callable[..., Any]  # one step more
    twin: Any  # that was trained on one device
    moved: Any = None  # and another, each of whose inputs was the next number


def trained(
    make: Model,
    optimizer: Callable[[], Any],
    *,
    stages: int = 3,
    segments: Sequence[Segment] | None = None,
    orders: Sequence[Sequence[Task]] | None = None,
    steps: int = 5,
    micro_batches: int = 4,
    between: Callable[[Any], None] = lambda _: None,
    move: bool = False,
) -> Trained:
    """Trains a pipeline and one device; the last micro-batch is smaller.

    After each step `between` gets each of the two optimizers.

    With `move` it trains a third model on one device, each of whose inputs is the next number of
    its type. If the inputs are whole numbers, its first weights are moved instead.
    """
    from gpubalance.engine.pipeline.cut_model import CutModel
    from gpubalance.engine.pipeline.micro_batches import micro_batch_of
    from gpubalance.engine.pipeline.pipeline import Pipeline

    own, twin, *others = alike(make, 3 if move else 2)
    mine = optimizer()
    its = optimizer()
    calls, blocks, samples = graph_of(own)
    placed = segments or in_stages(len(blocks.starts), min(stages, len(blocks.starts)))
    order = orders or orders_of(placed, blocks.graph, micro_batches)
    names = [f"CPU:{number}" for number in range(len(order))]
    pipeline = Pipeline(CutModel(own, blocks, placed, names, mine))
    alone = _alone(twin, its)
    moved = [_alone(one, optimizer()) for one in others]
    if not any("float" in tensor.dtype for tensor in own.inputs):
        for one in others:
            one.trainable_variables[0].assign(_next(one.trainable_variables[0].numpy()))
    worst = 0.0
    batch: list[Any] = []
    for step in range(steps):
        sizes = [4] * (micro_batches - 1) + [3]
        salts = enumerate(sizes, step * micro_batches)
        batch = [samples.make(size, salt=salt) for salt, size in salts]
        done = pipeline.step([micro_batch_of(one, calls) for one in batch], order)
        total, like = float(sum(sizes)), keras.tree.map_structure
        expected = alone([like(tf.constant, one) for one in batch], total)
        worst = max(worst, abs(sum(map(float, done.losses)) - expected))
        for one in moved:
            one([(like(_next, inputs), labels) for inputs, labels in batch], total)
        between(mine)
        between(its)
    last_batch = [micro_batch_of(one, calls) for one in batch]
    again = partial(pipeline.step, last_batch, order)
    found = _between(own, twin), _between(mine, its), worst
    return Trained(*found, own, again, twin, *others)


def _between(one: Any, other: Any) -> float:
    """The largest difference of their variables."""
    pair = ([variable.numpy() for variable in each.variables] for each in (one, other))
    return largest(*pair)


def _next(numbers: Any) -> Any:
    """The next one up of each real number."""
    if numbers.dtype.kind != "f":
        return numbers
    return np.nextafter(numbers, np.inf, dtype=numbers.dtype)


def _alone(model: Any, optimizer: Any) -> Callable[[Any, float], float]:
    """One device's step on the same micro-batches, one after the other, as written down by hand."""
    from gpubalance.engine.models import compile_for

    compile_for(model)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False, reduce_retracing=True)
    def gradients(inputs: Any, labels: Any, samples: Any, total: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model._compile_loss(labels, model(inputs, training=True))
            value = loss * samples / total
            if model.losses:
                added = [tf.cast(own, tf.float32) for own in model.losses]
                value += tf.add_n(added) * (samples / total)
            scaled = optimizer.scale_loss(value)
        weights = [variable.value for variable in model.trainable_variables]
        return value, tape.gradient(scaled, weights)

    def plus(one: Any, other: Any) -> Any:
        if not isinstance(one, tf.IndexedSlices):
            return one if other is None else one + other
        values = tf.concat([one.values, other.values], 0)
        indices = tf.concat([one.indices, other.indices], 0)
        return tf.IndexedSlices(values, indices, one.dense_shape)

    def step(batch: Any, total: float) -> float:
        sums = None
        value = 0.0
        for inputs, labels in batch:
            samples = float(len(tf.nest.flatten(inputs)[0]))
            sizes = tf.constant(samples), tf.constant(total)
            own, grads = gradients(inputs, labels, *sizes)
            value += float(own)
            pairs = zip(sums or grads, grads, strict=True)
            sums = [plus(*pair) for pair in pairs] if sums else grads
        optimizer.apply(sums, model.trainable_variables)
        return value

    return step


def cut_outputs(
    model: Any, calls: Any, starts: Sequence[int], inputs: Any
) -> list[Any]:
    """The outputs of a model that is run in parts, which begin at these calls.

    Each part runs on another device than the last.
    """
    from gpubalance.engine.pipeline.section import Section, with_masks

    given = [[tf.convert_to_tensor(x)] for x in keras.tree.flatten(inputs)]
    values = dict(zip(calls.inputs, given, strict=True))
    spans = zip(starts, [*starts[1:], len(calls.calls)], strict=True)
    for number, span in enumerate(spans):
        section = Section(calls, span, f"CPU:{number % 2}")
        taken = {slot: values[slot] for slot in (*section.inputs, *section.takes)}
        found = section.values(taken, training=False)
        gives = [*section.gives, *(one for one in calls.outputs if one in found)]
        own = with_masks({slot: found[slot] for slot in gives})
        values |= tf.nest.map_structure(tf.identity, own)
    return [values[slot][0].numpy() for slot in calls.outputs]
