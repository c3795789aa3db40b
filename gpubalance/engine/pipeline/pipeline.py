"""A model that is cut into segments on devices and trains in micro-batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import tensorflow as tf

from gpubalance.engine import keras_inside
from gpubalance.engine.failures import TaskFailedError
from gpubalance.engine.pipeline.blocks import Blocks
from gpubalance.engine.pipeline.micro_batches import MicroBatch, part_of_loss
from gpubalance.engine.pipeline.pace import Pace
from gpubalance.engine.pipeline.section import Section, with_masks
from gpubalance.engine.pipeline.step import Step, StoppedError
from gpubalance.engine.pipeline.traced import Gradient, copied
from gpubalance.engine.pipeline.update import Update
from gpubalance.planning.pipeline.problem import Segment, links_between
from gpubalance.planning.pipeline.timeline import Orders, Task
from gpubalance.settings.device import Device, JointProfile


class Pipeline:
    """A cut model, or some blocks of it. In a step, one thread for each device does its tasks in
    the given order.

    It has a section for each segment, and a link where one segment takes something of another.
    """

    def __init__(
        self,
        model: Any,
        blocks: Blocks,
        segments: Sequence[Segment],
        names: Sequence[str],
        optimizer: Any,
    ) -> None:
        """Moves the model's variables, and an optimizer's slots for them, to their devices:
        TensorFlow's `names`.
        """
        self.segments, self.names = tuple(segments), tuple(names)
        self.graph, self.links = blocks.graph, links_between(blocks.graph, segments)
        spans = [blocks.span(one.first, one.last) for one in segments]
        where = [names[one.device] for one in segments]
        self._packed, loss = blocks.calls.packed, partial(part_of_loss, model._compile_loss)
        self.sections = [
            Section(blocks.calls, *each, loss, optimizer.scale_loss)
            for each in zip(spans, where, strict=True)
        ]
        if optimizer.built:
            keras_inside.move_slots(optimizer)
        else:
            here = {id(variable) for section in self.sections for variable in section.trained}
            optimizer.build(
                [variable for variable in model.trainable_variables if id(variable) in here]
            )
        self._of: dict[int, list[Section]] = {
            device: [] for device in sorted({one.device for one in segments})
        }
        for section, one in zip(self.sections, segments, strict=True):
            self._of[one.device].append(section)
        trained = {
            device: [one for section in own for one in section.trained]
            for device, own in self._of.items()
        }
        self.update = Update(optimizer, names, trained)
        self.pace: Pace | None = None
        self._threads = ThreadPoolExecutor(len(trained))
        self._copying = ThreadPoolExecutor(2 * len(self.links) or 1)  # each link both ways
        self._numbers: dict[tuple[int, float], Any] = {}
        self._infers = tf.function(self._inferred, autograph=False, reduce_retracing=True)

    def follow(
        self, devices: Sequence[Device], joint: JointProfile, micro_batch: int, *, seed: int = 0
    ) -> None:
        """Begins to hold the devices to their profiles, if they have any."""
        profiles = [device.profile for device in devices if device.profile is not None]
        self.pace = (
            Pace(profiles, self.graph, self.segments, joint, micro_batch, seed)
            if profiles
            else None
        )

    def take(self, device: int) -> list[Gradient]:
        """A device's gradients, summed over micro-batches."""
        return [grad for section in self._of[device] for grad in section.take()]

    def number(self, device: int, value: float) -> Any:
        """The number, float32, on a device, where it stays: bringing it there waits for all that is
        queued.
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
                    found = copied(tensors)
            except Exception as error:  # noqa: BLE001 - whoever takes it raises it
                found = error
            done(found)

        self._copying.submit(copy)

    def held(self, micro: MicroBatch) -> MicroBatch:
        """The micro-batch, each part on the device of the section that takes it."""
        inputs = {}
        for slot, value in micro.inputs.items():
            with tf.device(
                next((one for one in self.sections if slot in one.inputs), self.sections[0]).device
            ):
                inputs[slot] = tf.identity(value)
        with tf.device(self.sections[-1].device):
            return MicroBatch(inputs, copied(micro.labels), micro.samples)

    def step(
        self,
        batch: Sequence[MicroBatch],
        orders: Orders,
        *,
        stamped: bool = False,
        patience_s: float | None = None,
    ) -> Step:
        """Trains on these micro-batches, each device in its order.

        Raises TaskFailedError: its `__cause__` is what a device raised, None if a device made no
        progress for longer than `patience_s`.
        """
        self.prepare(batch[0])
        if self.pace:
            self.pace.begin()
        self.update.begin()
        step = Step(self, batch, self.pace, stamped=stamped)
        self._work(step, orders, patience_s)
        self.update.end()
        if self.pace:
            step.timeline = self.pace.end(orders)
        elif stamped:
            step.timeline = step.measured()
        return step

    def _work(self, step: Step, orders: Orders, patience_s: float | None) -> None:
        submit = self._threads.submit
        left = {submit(step.work, device, orders[device]) for device in self.update.devices}
        while left:
            done, left = wait(
                left, timeout=patience_s and patience_s / 4, return_when="FIRST_EXCEPTION"
            )
            for error in filter(None, (one.exception() for one in done)):
                if not isinstance(error, StoppedError):
                    raise error
            if not done and patience_s is not None and time.monotonic() - step.moved_s > patience_s:
                step.stop()
                raise TaskFailedError(
                    *min(step.doing.items(), default=(0, "waiting for another device"))
                )

    def infer(self, micro: MicroBatch) -> tuple[Any, list[Any]]:
        """The outputs for a micro-batch, in the model's structure, and what its layers add to the
        loss.
        """
        return self._infers(dict(micro.inputs))  # type: ignore[no-any-return]

    def _inferred(self, inputs: dict[int, Any]) -> tuple[Any, list[Any]]:
        values, added = inputs, []
        for section in self.sections:
            taken = {slot: values[slot] for slot in (*section.inputs, *section.takes)}
            values = values | section.values(with_masks(taken), training=False)
            added += section.added()
        return self._packed(values), added

    def prepare(self, micro: MicroBatch) -> None:
        """Traces in this thread all that a step with such labels runs, and restores what layers
        count meanwhile.
        """
        if all(section.is_traced(micro.labels) for section in self.sections):
            return
        counted = [variable for section in self.sections for variable in section.counted]
        with tf.device("/CPU:0"):  # else untrained weights would be copied to a GPU
            before = [tf.identity(variable.value) for variable in counted]
        while not all(section.is_traced(micro.labels) for section in self.sections):
            self._try(micro)
        for device in self.update.devices:
            self.update.trace(device, self.take(device))
        for variable, value in zip(counted, before, strict=True):
            variable.assign(value)

    def _try(self, micro: MicroBatch) -> None:
        """Runs both passes of a micro-batch in each section."""
        step = Step(self, [micro])
        numbers = range(len(self.segments))
        for number in numbers:
            step.do(Task(number, "forward", 0))
        for section in self.sections:
            section.check_borrowed(self.sections)
        for number in reversed(numbers):
            step.do(Task(number, "backward", 0))
