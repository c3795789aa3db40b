"""A model that is built for its replicas, with its samples and the functions of its steps."""

from __future__ import annotations

import itertools
import math
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from typing import Any

import tensorflow as tf

from gpubalance.engine import data, models
from gpubalance.engine.feed import Dispatched, Feed
from gpubalance.engine.models import compiled_text, local_layers_of
from gpubalance.engine.replicas import Replicas
from gpubalance.engine.step.built import unchanged
from gpubalance.engine.step.functions import Functions
from gpubalance.engine.step.gradients import gradients_of
from gpubalance.engine.step.parity import TRIED_SAMPLES
from gpubalance.engine.step.part import part_of
from gpubalance.engine.step.step import replacements_for_parts
from gpubalance.results.combine_rules import UNTRIED, CombineRules
from gpubalance.results.timing import Prefetched
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.settings import Settings
from gpubalance.system.files import log_traceback

# If a pipeline's batches differ in shape, a timing is the mean over at least this many.
UNLIKE_BATCHES = 7
# Batches come in bursts: from a parallel map, a file, a rebatch. So a timing of a pipeline alone
# has several.
_LEAST_PULLED = 4
_LEAST_PULLED_S = 0.5


class Supply:
    """The batches of one split at a time: another's would take memory that is being measured.

    `cycle` is the number of steps until each batch has come once, if they differ in shape.
    """

    def __init__(self, replicas: Replicas, source: data.Source) -> None:
        self.source = source
        self.feed = Feed(replicas, BatchSplit((1,) * replicas.count))
        self.is_held = False
        self.cycle = 1
        self._batches: Iterator[Any] | None = None
        # A size, and batches of it
        self._prefetched: tuple[int, Iterator[Any]] | None = None

    def has(self, split: BatchSplit, *, held: bool) -> bool:
        """Whether it gives batches of this split, which are held on the devices or not."""
        return self._batches is not None and (split, held) == (
            self.feed.split,
            self.is_held,
        )

    def begin(self, split: BatchSplit) -> None:
        """Forgets the batches of the split before."""
        self.drop()
        self._prefetched = None
        self.feed.split = split

    def drop(self) -> None:
        """Drops the split's batches. The pipeline is the user's, and can't be read by two."""
        wait(self.feed.stop())
        self._batches = None

    def hold(self, memory_bytes: Sequence[int]) -> None:
        """Puts batches for the split on the devices, which have so much memory in all."""
        batches = data.held(self.feed, self.source, memory_bytes)
        self.is_held = True
        self.cycle = len(batches) if self.source.shapes_differ else 1
        self._batches = itertools.cycle(batches)

    def stream(self) -> None:
        """Takes batches for the split from the pipeline from now on."""
        self.is_held = False
        self.cycle = UNLIKE_BATCHES if self.source.shapes_differ else 1
        self._batches = self.source.stream(self.feed.split.global_batch)

    def next(self) -> tuple[Dispatched, float]:
        """The next batch, and the seconds that the host waited for it."""
        assert self._batches is not None  # noqa: S101  (`hold` or `stream` comes first)
        asked_s = time.perf_counter()
        if self.is_held:
            dispatched = next(self._batches)
        else:
            _, dispatched = self.feed.take(self._batches)
            self.feed.look_ahead(self._batches)
        return dispatched, time.perf_counter() - asked_s

    def pull(self, global_batch: int) -> Prefetched:
        """Takes some batches of that size from the pipeline, as fast as they come."""
        if self._prefetched is None or self._prefetched[0] != global_batch:
            self._prefetched = global_batch, self.source.stream(global_batch)
        _, batches = self._prefetched
        began_s = time.perf_counter()
        began_cpu_s = time.process_time()
        count = 0
        while count < _LEAST_PULLED or time.perf_counter() - began_s < _LEAST_PULLED_S:
            next(batches)
            count += 1
        cpu_s = time.process_time() - began_cpu_s
        return Prefetched(
            batches=count, seconds=time.perf_counter() - began_s, cpu_s=cpu_s
        )


# Operations that take long and have no formula, beside those that call a function, whose own are
# not counted.
_UNCOUNTED = re.compile("Conv3D|RNN")


def count_step(model: Any, samples: Sequence[Any]) -> float | None:
    """The mean of floating-point operations of a step on these samples, forward and backward.

    A multiply-add is two. Counts the operations that TensorFlow has a formula for, which take
    nearly all of the time: convolutions, matrix products, biases; and sums of products (einsum), as
    attention has. None for a step with loops, or with long operations that have no formula, as
    recurrent layers and 3-D convolutions have, and if a split can't train the model, or the
    profiler can't read the graph or finds nothing.
    """
    counts: list[float] = []
    by_shape: dict[str, float] = {}
    try:
        for sample in samples:
            specs = tf.nest.map_structure(
                lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), sample
            )
            shape = str(specs)
            if shape not in by_shape:
                by_shape[shape] = _count(model, specs)
            counts.append(by_shape[shape])
    except Exception as error:  # noqa: BLE001  (never worth losing the measurement for)
        log_traceback(error)
        return None
    mean = statistics.fmean(counts)
    return None if math.isnan(mean) else mean or None


def _count(model: Any, specs: Any) -> float:
    """The operations of a step on one sample; no number if some can't be counted."""

    def step(data: Any) -> Any:
        replacements = replacements_for_parts(model, takes_gradients=True)
        with unchanged(model), part_of(1.0, replacements) as part:
            model.train_step(data)
            grads, _ = gradients_of(model, part)
        return [grad for grad in grads if grad is not None]

    graph = tf.function(step, autograph=False).get_concrete_function(specs).graph
    # Without what nothing needs, which does not run, as the gradient of the model's input.
    outputs = [output.op.name for output in graph.outputs]
    nodes = tf.compat.v1.graph_util.extract_sub_graph(
        graph.as_graph_def(), outputs
    ).node
    if any(_has_no_formula(node) for node in nodes):
        return math.nan
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    profile = tf.compat.v1.profiler.profile(graph, options=options)
    total = _profiled(profile, {node.name for node in nodes})
    for node in nodes:
        if node.op == "Einsum":
            total += _of_einsum(graph.get_operation_by_name(node.name))
    return float(total)


def _has_no_formula(node: Any) -> bool:
    calls = any(attribute.func.name for attribute in node.attr.values())
    return calls or _UNCOUNTED.search(node.op) is not None


def _profiled(node: Any, needed: set[str]) -> int:
    """The profiler's count for a node and those inside it, of the needed ones only."""
    own = node.float_ops if node.name in needed else 0
    return own + sum(_profiled(child, needed) for child in node.children)


def _of_einsum(operation: Any) -> int:
    """A multiply-add for each combination of the equation's indices."""
    sizes: dict[str, int] = {}
    inputs, _, _ = operation.get_attr("equation").decode().partition("->")
    for indices, tensor in zip(inputs.split(","), operation.inputs, strict=True):
        sizes |= zip(indices, tensor.shape, strict=True)
    return 2 * math.prod(sizes.values())


class BuiltModel:
    """Makes the model, and finds out how a split would train it."""

    def __init__(
        self,
        settings: Settings,
        replicas: Replicas,
        device: str,
        combine_rules: CombineRules | None,
        *,
        seed: int,
    ) -> None:
        """`device` is the name of the one that has the samples. For `combine_rules` see Session."""
        self._settings = settings
        self._replicas = replicas
        with replicas.strategy.scope():
            self.model = models.make_model(settings)
        was_compiled = self.model.compiled
        self.source = data.samples_for(
            settings, self.model, replicas.strategy, device, seed=seed
        )
        self._compiled_with = None
        if settings.model_is_code and not was_compiled:
            self._compiled_with = compiled_text(self.model)
        self.functions = Functions(self.model, replicas, xla=settings.xla)
        self.combine_rules = self._build(combine_rules)

    def _build(self, combine_rules: CombineRules | None) -> CombineRules:
        """Builds the model, and finds out how a split would train it, if that is not known.

        Only user's code is tried. A single device trains what a split can't.
        """
        batch = data.as_tensors(self.source.make(TRIED_SAMPLES))
        data.build(self._settings, self.model, self._replicas.strategy, batch)
        if not self._settings.model_is_code:
            return UNTRIED
        if combine_rules is None:
            return self.functions.try_in_parts("train", batch)
        self.functions.follow("train", combine_rules)
        return combine_rules

    def facts(self) -> dict[str, Any]:
        """What a result records about the model."""
        pack_bytes = None
        if self._replicas.count > 1:
            pack_bytes = self.functions.pack_bytes
        return {
            "model": models.facts_of(self.model)
            | {"step": self.combine_rules.fingerprint},
            "pack_bytes": pack_bytes,
            "combine_rules": self.combine_rules,
            "own_batch": self.source.own_batch,
            "own_batch_stays": self.source.own_batch_stays,
            "samples": self.source.epoch_samples,
            "local_layers": local_layers_of(self.model),
            "compiled_with": self._compiled_with,
        }

    def step_flops(self) -> float | None:
        """The operations of a step for a sample, None if unknown.

        It is the mean of several samples if these differ in shape.
        """
        count = 1
        if self.source.shapes_differ:
            count = UNLIKE_BATCHES
        samples = [self.source.make(1, salt=number) for number in range(count)]
        return count_step(self.model, samples)

    def refuse_small(self, smallest: int) -> None:
        """Raises for a split whose smallest part is too small for the model to train exactly."""
        self.combine_rules.refuse_small(smallest, self.model)

    def loss_is_finite(self, logs: dict[str, Any]) -> bool:
        """Whether the loss is a number: as it is logged, else as the smallest weight tells."""
        if "loss" in logs:
            return math.isfinite(float(logs["loss"]))
        weights = self.model.trainable_variables
        smallest = min(weights, key=lambda variable: math.prod(variable.shape))
        return bool(tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(smallest))))
