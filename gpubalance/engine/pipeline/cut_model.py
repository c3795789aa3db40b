"""A model that is cut into segments, each with its variables on its device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import tensorflow as tf

from gpubalance.engine import keras_patches
from gpubalance.engine.pipeline.blocks import Blocks
from gpubalance.engine.pipeline.micro_batches import MicroBatch, part_of_loss
from gpubalance.engine.pipeline.section import Section, with_masks
from gpubalance.engine.pipeline.traced import Gradient, copied
from gpubalance.engine.pipeline.update import Update
from gpubalance.planning.pipeline.problem import Segment, links_between


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
        self._packed = blocks.calls.packed
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
        self._infers = tf.function(
            self._inferred, autograph=False, reduce_retracing=True
        )

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
        """The model's outputs for a micro-batch, and what its layers add to the loss."""
        return self._infers(dict(micro.inputs))  # type: ignore[no-any-return]

    def _inferred(self, inputs: dict[int, Any]) -> tuple[Any, list[Any]]:
        values = inputs
        added = []
        for section in self.sections:
            taken = {slot: values[slot] for slot in section.inputs + section.takes}
            values = values | section.values(with_masks(taken), training=False)
            added += section.added()
        return self._packed(values), added
