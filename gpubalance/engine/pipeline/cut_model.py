"""A model that is cut into segments, each with its variables and their update on its device.

Keras' `optimizer.apply` for all variables puts all of its arithmetic on the first device. Here it
is traced once for each device and its variables, with copies there of what the optimizer keeps
beside its slots (iterations, learning rate, loss scale). The devices first exchange what it needs
to know of all gradients: the global norm, and whether all are finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from gpubalance.engine import keras_patches
from gpubalance.engine.pipeline.blocks import Blocks
from gpubalance.engine.pipeline.micro_batches import MicroBatch, part_of_loss
from gpubalance.engine.pipeline.section import Section, with_masks
from gpubalance.engine.pipeline.traced import (
    Gradient,
    TracedFunction,
    copied,
    spec_of,
    values_of,
)
from gpubalance.planning.pipeline.problem import Segment, links_between

# Of a device's gradients: each one's sum of squares, and whether all are finite.
Summary: TypeAlias = tuple[Any, Any]


class Update:
    """An optimizer's update, each device for its own variables."""

    def __init__(
        self,
        optimizer: Any,
        names: Sequence[str],
        variables: Mapping[int, Sequence[Any]],
    ) -> None:
        """`optimizer` must be built for all of the model's variables, where they are now."""
        self.optimizer = optimizer
        self.devices = tuple(variables)
        self._names = names
        self._variables = variables
        keras_patches.check_optimizer(optimizer)
        self._inner = keras_patches.inner_of(optimizer)
        self._scales = self._inner is not optimizer
        self._copies: dict[int, keras_patches.OptimizerCopy] = {}
        self._dtype = tf.float32  # of the squares
        for device, own in variables.items():
            self._copies[device] = keras_patches.copy_for(optimizer, own, names[device])
            if any(variable.dtype == "float64" for variable in own):
                self._dtype = tf.float64
        self._trained: dict[int, list[Any]] = {}
        self._order: Any = ()  # puts all devices' gradients in the optimizer's order
        # Of each device that has gradients.
        self._summarize: dict[int, TracedFunction] = {}
        self._apply: dict[int, TracedFunction] = {}

    @property
    def meets(self) -> bool:
        """Whether a device's update depends on the other devices' gradients."""
        return self._scales or bool(self._inner.global_clipnorm)

    def begin(self) -> None:
        """Copies the optimizer's own scalars, which a callback may have set, to each device."""
        for optimizer_copy in self._copies.values():
            for scalar, copy in optimizer_copy.scalars:
                copy.assign(scalar.value)

    def end(self) -> None:
        """Copies the scalars back to the optimizer, from a device that has changed them."""
        changed = next(iter(self._apply), self.devices[0])
        for scalar, copy in self._copies[changed].scalars:
            scalar.assign(copy)

    def trace(self, device: int, grads: Sequence[Gradient]) -> None:
        """Traces a device's part for gradients like these.

        Call it in one thread, as Keras is not thread-safe.
        """
        pairs = zip(self._variables[device], grads, strict=True)
        self._trained[device] = [
            variable for variable, grad in pairs if grad is not None
        ]
        specs = list(map(spec_of, _without_none(grads)))
        if specs:
            squares = tf.TensorSpec([None], self._dtype)
            finite = tf.TensorSpec((), tf.bool)
            apply = partial(self._applied, device)
            self._apply[device] = TracedFunction(apply, specs, squares, finite)
            if self.meets:
                summarize = partial(self._summarized, device)
                self._summarize[device] = TracedFunction(summarize, specs)
        known = enumerate(self._inner._trainable_variables)
        place_of = {id(variable): place for place, variable in known}
        places = []
        for other in self.devices:
            places += [
                place_of[id(variable)] for variable in self._trained.get(other, ())
            ]
        self._order = np.argsort(places)

    def summary(self, device: int, grads: Sequence[Gradient]) -> Summary:
        """What the other devices need to know of a device's gradients."""
        if device not in self._summarize:
            return self._nothing
        return self._summarize[device](_without_none(grads))  # type: ignore[no-any-return]

    @property
    def _nothing(self) -> Summary:
        return tf.zeros(0, self._dtype), tf.constant(value=True)

    def apply(
        self, device: int, grads: Sequence[Gradient], summaries: Sequence[Summary]
    ) -> None:
        """Updates a device's variables; `summaries` are all devices' if the update `meets`."""
        if device not in self._apply:
            return
        squares, finite = self._nothing
        if summaries:
            all_squares, all_finite = zip(*copied(summaries), strict=True)
            squares = tf.gather(tf.concat(all_squares, 0), self._order)
            finite = tf.reduce_all(all_finite)
        self._apply[device](_without_none(grads), squares, finite)

    def _summarized(self, device: int, grads: Sequence[Gradient]) -> Summary:
        squares = []
        finite = []
        with tf.device(self._names[device]):
            for grad in grads:
                values = values_of(grad)
                squares.append(tf.reduce_sum(tf.square(tf.cast(values, self._dtype))))
                finite.append(tf.reduce_all(tf.math.is_finite(values)))
            return tf.stack(squares), tf.reduce_all(finite)

    def _applied(
        self, device: int, grads: Sequence[Gradient], squares: Any, finite: Any
    ) -> None:
        optimizer = self._copies[device].optimizer
        limit = self._inner.global_clipnorm
        if self._scales:
            vars(optimizer)["check_finite"] = lambda _: finite
        with tf.device(self._names[device]):
            if limit:
                factor = self._factor(optimizer, limit, squares)
                # As Keras does: so Adam sees the sum of an embedding's rows.
                dense = map(tf.convert_to_tensor, grads)
                grads = [grad * tf.cast(factor, grad.dtype) for grad in dense]
            optimizer.apply(grads, self._trained[device])

    def _factor(self, optimizer: Any, limit: float, squares: Any) -> Any:
        """The factor of Keras' clipping by a global norm.

        That is of unscaled gradients, summed in the same order.
        """
        norm = tf.sqrt(tf.reduce_sum(squares))
        if self._scales:
            norm = norm / tf.cast(optimizer.dynamic_scale, self._dtype)
        norm = norm / (self._inner.loss_scale_factor or 1.0)
        return limit * tf.minimum(1.0 / norm, 1.0 / limit) + (norm - norm)


def _without_none(grads: Sequence[Gradient]) -> list[Gradient]:
    return [grad for grad in grads if grad is not None]


class CutModel:
    """A model, or some of its blocks, with a section for each segment.

    There is a link where one segment takes something of another.
    """

    def __init__(
        self,
        model: Any,
        blocks: Blocks,
        segments: Sequence[Segment],
        names: Sequence[str],
        optimizer: Any,
    ) -> None:
        """Moves the model's variables, and an optimizer's slots for them, to their devices.

        `names` are TensorFlow's for the devices.
        """
        self.segments = tuple(segments)
        self.names = tuple(names)
        self.graph = blocks.graph
        self.links = links_between(blocks.graph, segments)
        self.sections: list[Section] = []
        devices = sorted({segment.device for segment in segments})
        trained: dict[int, list[Any]] = {device: [] for device in devices}
        loss = partial(part_of_loss, model._compile_loss)
        for segment in segments:
            span = blocks.span(segment.first, segment.last)
            name = names[segment.device]
            section = Section(blocks.calls, span, name, loss, optimizer.scale_loss)
            self.sections.append(section)
            trained[segment.device] += section.trained
        if optimizer.built:
            keras_patches.move_slots(optimizer)
        else:
            here: set[int] = set()
            for own in trained.values():
                here.update(map(id, own))
            variables = [
                variable
                for variable in model.trainable_variables
                if id(variable) in here
            ]
            optimizer.build(variables)
        self.update = Update(optimizer, names, trained)
        # Each link both ways
        self._copying = ThreadPoolExecutor(2 * len(self.links) or 1)
        self._numbers: dict[tuple[int, float], Any] = {}
        self._calls = blocks.calls
        self._infers: TracedFunction | None = None

    @property
    def is_in_place(self) -> bool:
        """Whether no variable was moved since, by another cut of the same model, or replaced."""
        return all(section.is_in_place for section in self.sections)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Undoes what layers count inside the block, also if it fails."""
        counted: list[Any] = []
        for section in self.sections:
            counted += section.counted
        with tf.device("/CPU:0"):  # else untrained weights would be copied to a GPU
            before = [tf.identity(variable.value) for variable in counted]
        try:
            yield
        finally:
            for variable, value in zip(counted, before, strict=True):
                variable.assign(value)

    def take_gradients(self, device: int) -> list[Gradient]:
        """A device's gradients, summed over micro-batches, which it forgets."""
        grads: list[Gradient] = []
        for section in self.sections:
            if section.device == self.names[device]:
                grads += section.take()
        return grads

    def number(self, device: int, value: float) -> Any:
        """The number, float32, on a device, where it stays.

        Bringing it there waits for all that is queued.
        """
        key = device, value
        if key not in self._numbers:
            with tf.device(self.names[device]):
                self._numbers[key] = tf.constant(value)
        return self._numbers[key]

    def bring(self, tensors: Any, device: int, done: Callable[[Any], None]) -> None:
        """Has a thread copy tensors to a device, and hands the copies, or the error, to `done`.

        A copy between GPUs, and whoever makes it, waits for all that is queued on both when it
        begins.
        """

        def copy() -> None:
            try:
                with tf.device(self.names[device]):
                    result = copied(tensors)
            except Exception as error:  # noqa: BLE001 - whoever takes it raises it
                result = error
            done(result)

        self._copying.submit(copy)

    def held(self, micro: MicroBatch) -> MicroBatch:
        """The micro-batch, each part on the device of the section that takes it."""
        inputs = {}
        for slot, value in micro.inputs.items():
            takers = [section for section in self.sections if slot in section.inputs]
            taker, *_ = takers or self.sections
            with tf.device(taker.device):
                inputs[slot] = tf.identity(value)
        with tf.device(self.sections[-1].device):
            return MicroBatch(inputs, copied(micro.labels), micro.samples)

    def infer(self, micro: MicroBatch) -> tuple[Any, list[Any]]:
        """The model's outputs for a micro-batch, and what its layers add to the loss.

        It is traced for any number of samples. Where Keras knew that there are as many as channels,
        its `ops.add` would take a number for each sample for one for each channel.
        """
        inputs = dict(micro.inputs)
        if self._infers is None:
            specs = {}
            for slot, value in inputs.items():
                specs[slot] = self._calls.spec_of(slot, value)
            self._infers = TracedFunction(self._inferred, specs)
        return self._infers(inputs)  # type: ignore[no-any-return]

    def _inferred(self, inputs: dict[int, Any]) -> tuple[Any, list[Any]]:
        values = inputs
        added = []
        for section in self.sections:
            taken = {slot: values[slot] for slot in section.inputs + section.takes}
            values = values | section.values(with_masks(taken), training=False)
            added += section.added()
        return self._calls.packed(values), added
