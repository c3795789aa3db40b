"""Tries a user's own `train_step` on a few samples: a split adds up its gradients for the parts of a batch."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine.keras_inside import graph_of, nodes_in_order
from gpubalance.errors import BadInput
from gpubalance.text import clean
from gpubalance.training.changes import is_keras_own, unchanged, watched
from gpubalance.training.gradients import gradients_of, taking_gradients
from gpubalance.training.layers import meeting
from gpubalance.training.metrics import counting
from gpubalance.training.part import part_of

_SUM = "sum"
_TRIED = 8  # samples, of which a quarter is one part
_FEWEST = 4  # samples that are normalised, and copies of them
_TILES = 8  # copies of samples, at most, for a step that draws random numbers
_TRIES = 5  # of that
_NEAR = 5e-3  # of a gradient's norm: TF32 rounds to 1e-3
_NEAR_IN_HALF = 5e-2
_ROUGHLY = 0.3  # of all gradients
_CLEARLY = 1.7  # times a mean's gradients: more than random numbers make of them
_UNLIKE = (
    "takes gradients that are not a mean over samples: they are clipped, or something is computed from the batch as a "
    "whole. A split adds up the gradients of a batch's parts, so the result is not exactly that of one device"
)
# Operations that can make a number for each pair of samples: matrix products, and what broadcasts.
_PAIRING = {"AddV2", "BatchMatMulV2", "Einsum", "MatMul", "Mul", "SquaredDifference", "Sub"}
_OR_SCALED = ", or give self.optimizer.scale_loss a value for each sample"
_UNKNOWN = "so it is not known whether it takes a mean over samples, as a split needs"
_TOO_FEW = (
    "draws random numbers or normalises batches, and the first device takes too few samples to try it (16 suffice): "
    + _UNKNOWN
)


def check(model: Any, batch: Any, share: int) -> None:
    """Raises BadInput for gradients of a sum over the batch, which are taken for a mean's, in a user's `train_step`.

    Also for such a sum that a layer adds to the loss. Warns of gradients that are neither's. No variable changes, as
    only what the gradients need is computed. Takes no more samples than a device's `share`, but at least two.
    """
    own = _names_of_own(model)
    is_own_step = not is_keras_own(type(model).train_step)
    if not is_own_step and not own:
        return
    step = f"the train_step of the model {model.name}"
    if not is_own_step:
        step = f"training the model {model.name} (your own code: {', '.join(own)})"
    try:
        trial = _Trial(model, batch)
        verdict = trial.of_parts(share) if trial.is_exact else trial.of_tiles(share)
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises for these samples; training may not
        verdict = f"can't be tried on a few samples ({type(error).__name__}: {_line_of(error)}): {_UNKNOWN}"
    if verdict == _SUM:
        raise BadInput(
            f"{step} takes the gradients of a sum over the batch, but a split needs those of a mean over its samples "
            "(a sum divided by a fixed number is one, too)",
            remedy="take the mean over samples" + _OR_SCALED * is_own_step,
        )
    if verdict:
        warnings.warn(f"{step} {verdict}", stacklevel=2)


def _line_of(error: Exception) -> str:
    """An error's first line, or of a graph's error the one that says what is wrong: that before its node."""
    text, node, _ = str(error).strip().partition("\n\t [[{{node")
    return clean((text.splitlines() or [""])[-1 if node else 0])


def _names_of_own(model: Any) -> list[str]:
    """The names of layers with code of the user's, and of a graph's operations that leave no value for each sample."""
    layers = model._flatten_layers()
    graphs = (graph_of(layer) for layer in layers)
    nodes = [node for graph in graphs if graph is not None for node in nodes_in_order(graph)]
    mixing = [node.operation.name for node in nodes if not isinstance(node.operation, keras.Layer) and _mixes(node)]
    return [*(layer.name for layer in layers if _is_own(layer)), *mixing]


def _is_own(layer: Any) -> bool:
    given = (getattr(layer, name, None) for name in ("activation", "activity_regularizer", "function"))
    return not is_keras_own(layer) or any(one is not None and not is_keras_own(one) for one in given)


def _mixes(node: Any) -> bool:
    return any(output.shape[:1] != (None,) for output in node.output_tensors)


class _Trial:
    """A step traced once, for any samples: the numbers that layers add to the loss, and what tells gradients apart."""

    def __init__(self, model: Any, batch: Any) -> None:
        flat = [None if one is None else tf.convert_to_tensor(one) for one in tf.nest.flatten(batch)]
        self._given = [one for one in flat if one is not None]
        self._samples = int(self._given[0].shape[0])
        self._adding: list[str] = []
        normalises = any(isinstance(one, keras.layers.BatchNormalization) for one in model._flatten_layers())

        def step(weight: Any, *values: Any) -> Any:
            """What layers add to the loss, and the marks of the gradients, for these values of a batch."""
            given = iter(values)
            data = tf.nest.pack_sequence_as(batch, [None if one is None else next(given) for one in flat])
            with (
                unchanged(model),
                counting(model),
                meeting(model),
                watched(),
                taking_gradients(model),
                part_of(weight, counts=False, tried=True) as part,
            ):
                grads, _, _ = gradients_of(model, part, data)
            self._adding = [name for name, _ in part.added]
            self._is_own_loss = bool(part.added) or not is_keras_own(type(model).train_step)
            self._is_random = _is_random(tf.compat.v1.get_default_graph())
            self.is_exact = not (normalises or part.divides or self._is_random)
            added = [tf.cast(loss, tf.float32) for _, loss in part.added]
            marks = [_marks(grad) for grad in grads if grad is not None]
            return tf.stack(added) if added else tf.zeros((0,)), tf.stack(marks) if marks else tf.zeros((0, 3))

        specs = [tf.TensorSpec((None, *one.shape[1:]), one.dtype) for one in self._given]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            function = tf.compat.v1.wrap_function(step, [tf.TensorSpec((), tf.float32), *specs])
        self.is_exact = self.is_exact and not told
        # Without what only changes variables, writes summaries or prints.
        self._run = function.prune(function.inputs[: 1 + len(specs)], function.outputs)
        self._pairs_samples = any(map(_pairs_samples, self._run.graph.get_operations()))
        dtypes = {layer.compute_dtype for layer in model._flatten_layers()}
        self._near = _NEAR_IN_HALF if dtypes & {"float16", "bfloat16"} else _NEAR

    def of_parts(self, share: int) -> str:
        """What the step takes if not a mean, from some samples and from two parts of them."""
        count = min(_TRIED, max(2, share), self._samples)
        if count < 2:
            return ""
        cut = max(1, count // 4)
        weight = cut / count
        _, every = self._of(slice(count), 1.0)
        added, one = self._of(slice(cut), weight)
        _, other = self._of(slice(cut, count), 1 - weight)
        added_by_two, two = self._of(slice(cut), weight, copies=2)
        for name, *numbers in zip(self._adding, added_by_two, added, strict=True):
            _check_added(name, 2, *numbers)
        norms = np.maximum(np.maximum(every, one), other)[:, :1]
        rounding = self._near * norms + 1e-5 * np.linalg.norm(norms)

        def is_near(whole: Any) -> bool:
            return bool(np.all(np.abs(every - whole)[:, 1:] <= rounding))

        if is_near(one + other):
            is_unknown = norms.size and not norms.any()
            return f"has no gradients for the first samples: {_UNKNOWN}" if is_unknown else ""
        # A part adds as much to the gradients of a sum as a copy of it does, but a copy adds nothing to a mean's.
        copy = (two - one) / weight
        return _SUM if np.any(np.abs(copy)[:, 1:] > rounding) and is_near(other / (1 - weight) + copy) else _UNLIKE

    def of_tiles(self, share: int) -> str:
        """The same from some samples and from copies of them, which have the same mean and variance.

        Of fewer than four samples normalisation leaves roundings, which tell nothing, and random numbers need four
        copies of them. Where a device takes fewer, only a plain sum is found, or nothing: that is said if the user's
        code computes the loss, or a part of it.
        """
        tiles = min(_TILES, max(_FEWEST, share // _FEWEST)) if self._is_random else 2
        count = min(_FEWEST, share // tiles, self._samples)
        if count < _FEWEST and (self._is_random or not count):
            return _TOO_FEW if self._is_own_loss else ""
        starts = [place * (self._samples - count) // (_TRIES - 1) for place in range(_TRIES)]
        few = [self._of(slice(at, at + count), 1 / tiles) for at in starts]
        many = [self._of(slice(at, at + count), 1.0, tiles) for at in starts]
        for place, name in enumerate(self._adding):
            numbers = [sum(float(added[place]) for added, _ in of) for of in (many, few)]
            near = 0.5 if self._is_random else _NEAR_IN_HALF
            _check_added(name, tiles, *numbers, near=near)
        of_many, of_few = (np.stack([marks for _, marks in of]) for of in (many, few))
        if self._is_random:  # whose norms do not tell a contrastive loss from a mean
            return _grown(of_many, tiles * of_few, tiles) or (_UNLIKE if self._pairs_samples else "")
        found = _like(of_many, tiles * of_few, tiles)
        return found if found == _SUM or count == _FEWEST else ""

    def _of(self, at: slice, weight: float, copies: int = 1) -> Any:
        """What layers add, and the marks [variable, 3], for some samples with that weight in the global batch."""
        values = [tf.concat([one[at]] * copies, axis=0) for one in self._given]
        return tuple(one.numpy() for one in self._run(tf.constant(weight, tf.float32), *values))


def _like(many: Any, mean: Any, tiles: int) -> str:
    """What gradients of copies are, [try, variable, mark], beside those of the `mean`."""
    off = [float(np.linalg.norm((many - times * mean)[..., 1:])) for times in (1, tiles)]
    near = _ROUGHLY * float(np.linalg.norm(many[..., 1:]))  # normalising a few samples magnifies roundings
    if off[0] <= near:
        return ""
    return _SUM if off[1] <= near else _UNLIKE


def _grown(many: Any, mean: Any, tiles: int) -> str:
    """The same by their norms, which random numbers change little."""
    of_many, of_mean = (np.linalg.norm(marks[..., 0], axis=1) for marks in (many, mean))
    grown = float(np.linalg.norm(of_many)) / max(float(np.linalg.norm(of_mean)), 1e-30)
    if grown <= _CLEARLY:
        return ""
    is_plain = of_many.min() > _CLEARLY * of_mean.max()  # in each of the tries
    return _SUM if is_plain and grown > max(_CLEARLY**2, tiles / 2) else _UNLIKE


def _check_added(name: str, copies: int, of_many: float, of_few: float, *, near: float = _NEAR) -> None:
    """Raises BadInput for a number that a layer adds to the loss if copies of samples add as many times as much."""
    rounding = near * abs(of_many)
    if abs(of_many - of_few) > rounding >= abs(of_many - copies * of_few):
        raise BadInput(
            f"the layer {name} adds a sum over the batch to the loss: it is taken for a mean when a batch is divided",
            remedy="add_loss(ops.mean(loss)), or a value for each sample",
        )


def _marks(grad: Any) -> Any:
    """A gradient's norm and its products with two fixed vectors of random numbers, which add up as gradients do."""
    if isinstance(grad, tf.IndexedSlices):  # each row in its place, which other samples would give another order
        grad = tf.math.unsorted_segment_sum(grad.values, grad.indices, grad.dense_shape[0])
    grad = tf.cast(grad, tf.float32)
    products = [grad * tf.random.stateless_normal(tf.shape(grad), (seed, 0)) for seed in (1, 2)]
    return tf.stack([tf.norm(grad), *map(tf.reduce_sum, products)])


def _pairs_samples(op: Any) -> bool:
    """Whether an operation makes something for each pair of samples. Only the number of samples is unknown."""

    def unknown(tensor: Any) -> int:
        return 0 if tensor.shape.rank is None else tensor.shape.as_list().count(None)

    is_pairing = op.type in _PAIRING and max(map(unknown, op.inputs)) == 1
    return is_pairing and any(unknown(output) > 1 for output in op.outputs)


def _is_random(graph: Any) -> bool:
    """Whether a graph, or a function that it calls, draws random numbers."""
    made = graph.as_graph_def()
    nodes = [*made.node, *(node for function in made.library.function for node in function.node_def)]
    return any("Random" in node.op or node.op == "Multinomial" for node in nodes)
