"""The traced functions of a model's steps: one trace of a kind serves every split and every size of
batch.
"""

from __future__ import annotations

import functools
import math
import re
import statistics
import traceback
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gpubalance.engine.feed import WEIGHTS, Dealt
from gpubalance.engine.place import Place
from gpubalance.engine.step import parity
from gpubalance.engine.step.built import unchanged
from gpubalance.engine.step.gradients import gradients_of
from gpubalance.engine.step.known_sum import check_sum
from gpubalance.engine.step.logs import as_told
from gpubalance.engine.step.pack_size import pack_bytes_for
from gpubalance.engine.step.parity import TRIED
from gpubalance.engine.step.part import part_of
from gpubalance.engine.step.step import StepKind, dividing, predicting, testing, training
from gpubalance.errors import BadInput
from gpubalance.results.decomposition import UNTRIED, Decomposition


class Functions:
    """A model's steps on a place, each traced on first use."""

    def __init__(self, model: Any, place: Place, *, xla: bool = False) -> None:
        self._model, self._place, self._xla = model, place, xla
        self._verdicts = {"train": UNTRIED, "test": UNTRIED}
        # By what they do, the structure of batches and the kind of step: the signature and the
        # function.
        self._traced: dict[tuple[str, str, StepKind], tuple[Any, Any]] = {}

    @functools.cached_property
    def pack_bytes(self) -> int:
        """How many bytes of gradients are summed in one all-reduce, 0 for all; a compiled part
        gives all at once.
        """
        asked = self._place.summing.pack_bytes
        if asked is not None:
            return asked
        if self._xla or self._place.replicas == 1:
            return 0
        return pack_bytes_for(self._model, self._place)

    def try_in_parts(self, what: str, batch: Any, *, share: int = TRIED) -> Decomposition:
        """Tries `train` or `test` on a batch, and combines parts by what that found from now on:
        see `parity.check`.
        """
        found = parity.check(
            self._model, batch, self._place.names[0], share=share, trains=what == "train"
        )
        self.follow(what, found)
        return found

    def follow(self, what: str, verdict: Decomposition) -> None:
        """Combines parts by what is known of `train` or `test` from now on."""
        self._verdicts[what] = verdict
        self._traced = {key: made for key, made in self._traced.items() if key[0] != what}

    def train(
        self, dealt: Dealt, *, stamped: bool = False, noisy: bool = False
    ) -> tuple[dict[str, Any], Any, bool]:
        """Trains on a batch: the logs, the stamps if it is stamped, and whether the step was traced
        for it.

        Raises ResourceExhaustedError if a device's memory does not hold it.
        """
        kind = StepKind(
            whole=dealt.whole,
            micro=dealt.shares.accumulates,
            stamped=stamped,
            noisy=stamped and noisy and not dealt.whole,
            xla=self._xla,
            as_it_is=self._verdicts["train"].refused is not None and self._place.replicas == 1,
            pack_bytes=self.pack_bytes,
        )
        self._refuse_beyond_memory(dealt.shares.micro_batches)
        (logs, numbers, stamps), is_new = self._call("train", dealt, kind)
        return as_told(logs, numbers), stamps, is_new

    def _refuse_beyond_memory(self, sizes: tuple[int, ...]) -> None:
        """Raises for a simulated device before the step, in all processes of a cluster alike.

        Within the step TensorFlow would cancel the other devices' sum, and sometimes that of the
        next step too.
        """
        for clock, size in zip(self._place.clocks, sizes, strict=True):
            lack = clock.lacks(size)
            if lack:
                raise tf.errors.ResourceExhaustedError(None, None, lack)

    def test(self, dealt: Dealt) -> dict[str, Any]:
        """The logs of a batch in `evaluate`."""
        (logs, numbers), _ = self._call("test", dealt, StepKind(whole=dealt.whole))
        return as_told(logs, numbers)

    def predict(self, dealt: Dealt) -> Any:
        """The outputs for a batch, in the order of its samples."""
        return self._call("predict", dealt, StepKind(whole=dealt.whole))[0]

    def _call(self, what: str, dealt: Dealt, kind: StepKind) -> tuple[Any, bool]:
        """What the step gives, and whether it was traced for it, as for a wider layout of batches
        than before.
        """
        key, layout = (what, dealt.layout.like, kind), dealt.layout.signature
        is_new = key not in self._traced or self._traced[key][0] is not layout
        if is_new:
            self._traced[key] = layout, self._trace(what, kind, layout)
        with tf.device("/CPU:0"):  # where loops over micro-batches need their sizes
            at_a_time = tf.constant(dealt.shares.micro_batches, tf.int32)
        # Where what has no device of its own is put, as what is returned.
        with tf.device(self._place.names[0]):
            return self._traced[key][1](dealt.values, at_a_time), is_new

    def _trace(self, what: str, kind: StepKind, signature: Any) -> Any:
        """The traced function. The concrete one: a tf.function takes half a millisecond to find its
        only trace.
        """
        model, place = self._model, self._place
        if what == "train" and place.replicas > 1:
            check_sum(place)
        if what == "predict":
            step = predicting(model, place, whole=kind.whole)
        else:
            step = (training if what == "train" else testing)(
                model, place, self._verdicts[what], kind
            )
        values = ((signature, tf.TensorSpec((WEIGHTS,), tf.float64)),) * len(place.names)
        at_a_time = tf.TensorSpec((place.replicas,), tf.int32)
        made = tf.function(step, input_signature=[values, at_a_time], autograph=False)
        try:
            return made.get_concrete_function()
        except Exception as error:
            # Of a variable that is made while a step is traced.
            if type(error).__name__ != "UnliftableError":
                raise
            raise BadInput(
                f"the model {model.name} creates a variable in its first step, as "
                "keras.random without a seed does",
                remedy=(
                    "create it before: seed = keras.random.SeedGenerator(1), and draw with "
                    "seed=seed"
                ),
            ) from error


# Operations that take long and have no formula, beside those that call a function, whose own are
# not counted.
_UNCOUNTED = re.compile("Conv3D|RNN")


def count_step(model: Any, samples: Sequence[Any]) -> float | None:
    """The mean of floating-point operations of a step on these samples, forward and backward; a
    multiply-add is two.

    Counts the operations that TensorFlow has a formula for, which take nearly all of the time:
    convolutions, matrix products, biases; and sums of products (einsum), as attention has. None for
    a step with loops, or with long operations that have no formula, as recurrent layers and 3-D
    convolutions have, and if a split can't train the model, or the profiler can't read the graph or
    finds nothing.
    """
    specs = [
        tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), x) for x in samples
    ]
    try:
        counted = {key: _count(model, one) for key, one in {str(one): one for one in specs}.items()}
    except Exception as error:  # noqa: BLE001  (never worth losing the measurement for)
        traceback.print_exception(error)
        return None
    mean = statistics.fmean(counted[str(one)] for one in specs)
    return None if math.isnan(mean) else mean or None


def _count(model: Any, specs: Any) -> float:
    def step(data: Any) -> Any:
        with unchanged(model), dividing(model, trains=True), part_of(1.0) as part:
            return [grad for grad in gradients_of(model, part, data)[0] if grad is not None]

    graph = tf.function(step, autograph=False).get_concrete_function(specs).graph
    # Without what nothing needs, which does not run, as the gradient of the model's input.
    of_outputs = [one.op.name for one in graph.outputs]
    nodes = tf.compat.v1.graph_util.extract_sub_graph(graph.as_graph_def(), of_outputs).node
    if any(
        _UNCOUNTED.search(node.op) or any(one.func.name for one in node.attr.values())
        for node in nodes
    ):
        return math.nan
    needed = {node.name for node in nodes}

    def counted(node: Any) -> float:
        return (node.float_ops if node.name in needed else 0) + sum(map(counted, node.children))

    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    sums = (
        _einsum_flops(graph.get_operation_by_name(node.name))
        for node in nodes
        if node.op == "Einsum"
    )
    return float(counted(tf.compat.v1.profiler.profile(graph, options=options))) + sum(sums)


def _einsum_flops(operation: Any) -> int:
    """A multiply-add for each combination of the equation's indices."""
    sizes = dict[str, int]()
    of_inputs = operation.get_attr("equation").decode().partition("->")[0].split(",")
    for indices, tensor in zip(of_inputs, operation.inputs, strict=True):
        sizes |= zip(indices, tensor.shape, strict=True)
    return 2 * math.prod(sizes.values())
