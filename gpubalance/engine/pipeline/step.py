"""One step of a pipeline: what each device's thread does in the planned order, and what it gives
the others.

If TensorFlow ran all micro-batches as one graph, it would run them in any order and hold twice the
memory, and the graph would take minutes to trace. Here each section is traced once, for any number
of micro-batches. What one device sends waits in the mailbox until the receiver's order comes to it,
so the orders bound what is held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from gpubalance.engine import runtime
from gpubalance.engine.failures import TaskFailedError
from gpubalance.engine.pipeline.micro_batches import MicroBatch
from gpubalance.engine.pipeline.pace import Pace
from gpubalance.engine.pipeline.section import Passed
from gpubalance.engine.pipeline.traced import copied
from gpubalance.planning.pipeline.schedule import inputs_of
from gpubalance.planning.pipeline.timeline import Task, Timed, Timeline, Updated

if TYPE_CHECKING:
    from gpubalance.engine.pipeline.pipeline import Pipeline


class StoppedError(Exception):
    """Another device has failed: what this one waits for will not come."""


class Mailbox:
    """Holds each value until it is taken, once. The order of each device's tasks bounds how many it
    holds.
    """

    def __init__(self) -> None:
        self._given: dict[Hashable, Any] = {}
        self._changed = threading.Condition()
        self._is_stopped = False

    def give(self, key: Hashable, value: Any) -> None:
        """Leaves a value for whoever takes the key."""
        with self._changed:
            self._given[key] = value
            self._changed.notify_all()

    def take(self, key: Hashable) -> Any:
        """Waits for the key's value. Raises StoppedError if it will not come, and an error that
        came in its place.
        """
        with self._changed:
            self._changed.wait_for(lambda: key in self._given or self._is_stopped)
            if self._is_stopped:
                raise StoppedError
            value = self._given.pop(key)
        if isinstance(value, Exception):
            raise value
        return value

    def stop(self) -> None:
        """Ends all waiting."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()


class Step:
    """A step in progress, and its result. Each device's thread calls `work`.

    `losses` add up to the batch's; `finals` are the model's outputs for each micro-batch. If
    `stamped`, a device's next task waits for what it has queued, so that times are its own.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        batch: Sequence[MicroBatch],
        pace: Pace | None = None,
        *,
        stamped: bool = False,
    ) -> None:
        self._pipeline, self._pace = pipeline, pace
        self._batch = batch
        self._stamped = stamped
        self._total = float(sum(one.samples for one in batch))
        self._box = Mailbox()
        self._passed: dict[tuple[int, int], Passed] = {}
        for section in pipeline.sections:
            section.take()  # left by a step that failed
        self.losses: list[Any] = []
        self.finals: list[Any] = [None] * len(batch)
        self._began_s = time.perf_counter()
        self._timed: dict[Task, Timed] = {}
        self._updates: list[Updated] = []
        self.timeline: Timeline | None = None
        self.doing: dict[int, str] = {}
        self.moved_s = time.monotonic()

    def stop(self) -> None:
        """Ends the other devices' waiting."""
        self._box.stop()

    def measured(self) -> Timeline:
        """When each task and update was done; of a stamped step."""
        timed = sorted(self._timed.values(), key=lambda one: one.start_s)
        return Timeline(tuple(timed), tuple(sorted(self._updates)))

    def work(self, device: int, order: Sequence[Task]) -> None:
        """Does a device's tasks and update. Raises TaskFailedError, or StoppedError if another
        device has failed.
        """
        for task in order:
            self.do(task)
        with self._on(device, "the update"):
            self._apply(device)

    def do(self, task: Task) -> None:
        """Does one task, once all its inputs are there."""
        first, last, device = self._pipeline.segments[task.segment]
        text = f"the {task.kind} pass of micro-batch {task.micro_batch} in blocks {first} to {last}"
        with self._on(device, text):
            others: dict[int, Any] = {}
            sent_s = 0.0
            for given in inputs_of(task, self._pipeline.links):
                if given.segment != task.segment:
                    others[given.segment] = self._box.take((given, task.segment))
                sent_s = max(sent_s, self._timed[given].end_s)
            self.doing[device] = text
            if self._pace:
                self._pace.hold(task)
            start_s = self._now(device)
            gives = (
                self._forward(task, others)
                if task.kind == "forward"
                else self._backward(task, others)
            )
            self._timed[task] = Timed(*task, device, sent_s, start_s, start_s, self._now(device))
            self._send(task, gives)

    def _now(self, device: int) -> float:
        if self._stamped:
            runtime.wait_for([self._pipeline.names[device]])
        return time.perf_counter() - self._began_s

    @contextmanager
    def _on(self, device: int, doing: str) -> Iterator[None]:
        """Runs the block on the device, and names it in errors."""
        try:
            with tf.device(self._pipeline.names[device]):
                yield
        except StoppedError:
            raise
        except BaseException as error:
            self.stop()
            raise TaskFailedError(device, doing) from error
        self.doing.pop(device, None)
        self.moved_s = time.monotonic()

    def _forward(self, task: Task, others: dict[int, Any]) -> Any:
        section, micro = self._pipeline.sections[task.segment], self._batch[task.micro_batch]
        taken = (*section.inputs, *section.takes)
        tensors = {
            slot: [tf.identity(micro.inputs[slot])] for slot in taken if slot in micro.inputs
        }
        for gives in others.values():
            tensors |= gives
        labels = copied(micro.labels) if section.is_last else ()
        device = self._pipeline.segments[task.segment].device
        samples, total = (
            self._pipeline.number(device, value) for value in (float(micro.samples), self._total)
        )
        passed = section.forward(tensors, labels, samples, total)
        self._passed[task.segment, task.micro_batch] = passed
        if passed.loss is not None:
            self.losses.append(passed.loss)
        if section.is_last:
            self.finals[task.micro_batch] = passed.finals
        return passed.outputs

    def _backward(self, task: Task, others: dict[int, Any]) -> Any:
        section = self._pipeline.sections[task.segment]
        passed = self._passed.pop((task.segment, task.micro_batch))
        back = {
            slot: [grads[slot] for grads in others.values() if slot in grads]
            for slot in section.gives
        }
        if len(self._pipeline.sections) == 1:  # a block alone, whose outputs no other takes
            back = {slot: [tf.ones_like(passed.outputs[slot][0])] for slot in section.gives}
        return section.backward(passed, back)

    def _send(self, task: Task, gives: Any) -> None:
        """Sends each segment the part of the outputs, or of the gradients, that it takes, as soon
        as it is queued.
        """
        forward = task.kind == "forward"
        for source, target, _ in self._pipeline.links:
            mine, other = (source, target) if forward else (target, source)
            if mine == task.segment:
                section = self._pipeline.sections[other]
                slots = section.takes if forward else section.gives
                part = {s: gives[s] for s in slots if gives.get(s) is not None}
                device = self._pipeline.segments[other].device
                self._pipeline.bring(part, device, partial(self._box.give, (task, other)))

    def _apply(self, device: int) -> None:
        """Does the device's update, after all devices have met if the optimizer needs that."""
        update, grads, told = self._pipeline.update, self._pipeline.take(device), list[Any]()
        if update.meets:
            mine = update.tell(device, grads)
            for other in update.devices:
                self._box.give(("told", device, other), mine)
            told = [self._box.take(("told", other, device)) for other in update.devices]
        begins_s = self._now(device)
        update.apply(device, grads, told)
        self._updates.append(Updated(device, begins_s, self._now(device)))
