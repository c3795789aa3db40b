"""Trains a cut model in micro-batches, with a thread for each device, which exchange values.

If TensorFlow ran all micro-batches as one graph, it would run them in any order and hold twice the
memory, and the graph would take minutes to trace. Here each section is traced once, for any number
of micro-batches. What one device sends waits in the mailbox until the receiver's order comes to it,
so the orders bound what is held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from gpubalance.engine import runtime
from gpubalance.engine.failures import TaskFailedError
from gpubalance.engine.pace import PipelinePace
from gpubalance.engine.pipeline.cut_model import CutModel
from gpubalance.engine.pipeline.micro_batches import MicroBatch
from gpubalance.engine.pipeline.section import Passed
from gpubalance.engine.pipeline.traced import copied
from gpubalance.planning.pipeline.problem import Orders, Task, Timed, Timeline, Updated
from gpubalance.planning.pipeline.schedule import inputs_of
from gpubalance.settings.device import Device, JointProfile


class StoppedError(Exception):
    """Another device has failed: what this one waits for will not come."""


class Mailbox:
    """Holds each value until it is taken, once.

    The order of each device's tasks bounds how many it holds.
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}
        self._changed = threading.Condition()
        self._is_stopped = False

    def give(self, key: Hashable, value: Any) -> None:
        """Leaves a value for whoever takes the key."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def take(self, key: Hashable) -> Any:
        """Waits for the key's value.

        Raises StoppedError if it will not come, and an error that came in its place.
        """
        with self._changed:
            self._changed.wait_for(lambda: key in self._values or self._is_stopped)
            if self._is_stopped:
                raise StoppedError
            value = self._values.pop(key)
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
        cut: CutModel,
        batch: Sequence[MicroBatch],
        pace: PipelinePace | None = None,
        *,
        stamped: bool = False,
    ) -> None:
        self._cut = cut
        self._batch = batch
        self._pace = pace
        self._stamped = stamped
        self._total = float(sum(micro.samples for micro in batch))
        self._box = Mailbox()
        self._passed: dict[tuple[int, int], Passed] = {}
        for section in cut.sections:
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
        tasks = sorted(self._timed.values(), key=lambda timed: timed.start_s)
        return Timeline(tuple(tasks), tuple(sorted(self._updates)))

    def work(self, device: int, order: Sequence[Task]) -> None:
        """Does a device's tasks and update.

        Raises TaskFailedError, or StoppedError if another device has failed.
        """
        for task in order:
            self.do(task)
        with self._on(device, "the update"):
            self._apply(device)

    def do(self, task: Task) -> None:
        """Does one task, once all its inputs are there."""
        first, last, device = self._cut.segments[task.segment]
        text = (
            f"the {task.kind} pass of micro-batch {task.micro_batch} in blocks {first} "
            f"to {last} of the model's layers"
        )
        with self._on(device, text):
            inputs: list[dict[int, Any]] = []  # what each other segment has sent
            sent_s = 0.0
            for source in inputs_of(task, self._cut.links):
                if source.segment != task.segment:
                    inputs.append(self._box.take((source, task.segment)))
                sent_s = max(sent_s, self._timed[source].end_s)
            self.doing[device] = text
            if self._pace:
                self._pace.hold(task)
            start_s = self._now(device)
            run_pass = self._forward if task.kind == "forward" else self._backward
            gives = run_pass(task, inputs)
            self._timed[task] = Timed(
                *task, device, sent_s, start_s, start_s, self._now(device)
            )
            self._send(task, gives)

    def _now(self, device: int) -> float:
        if self._stamped:
            runtime.wait_for([self._cut.names[device]])
        return time.perf_counter() - self._began_s

    @contextmanager
    def _on(self, device: int, doing: str) -> Iterator[None]:
        """Runs the block on the device, and names it in errors."""
        try:
            with tf.device(self._cut.names[device]):
                yield
        except StoppedError:
            raise
        except BaseException as error:
            self.stop()
            raise TaskFailedError(device, doing) from error
        self.doing.pop(device, None)
        self.moved_s = time.monotonic()

    def _forward(self, task: Task, inputs: Sequence[dict[int, Any]]) -> Any:
        section = self._cut.sections[task.segment]
        micro = self._batch[task.micro_batch]
        tensors = {}
        for slot in section.inputs + section.takes:
            if slot in micro.inputs:
                tensors[slot] = [tf.identity(micro.inputs[slot])]
        for sent in inputs:
            tensors |= sent
        labels = copied(micro.labels) if section.is_last else ()
        device = self._cut.segments[task.segment].device
        samples = self._cut.number(device, float(micro.samples))
        total = self._cut.number(device, self._total)
        passed = section.forward(tensors, labels, samples, total)
        self._passed[task.segment, task.micro_batch] = passed
        if passed.loss is not None:
            self.losses.append(passed.loss)
        if section.is_last:
            self.finals[task.micro_batch] = passed.finals
        return passed.outputs

    def _backward(self, task: Task, inputs: Sequence[dict[int, Any]]) -> Any:
        section = self._cut.sections[task.segment]
        passed = self._passed.pop((task.segment, task.micro_batch))
        back = {}
        for slot in section.gives:
            # A block alone, whose outputs no other takes
            if len(self._cut.sections) == 1:
                back[slot] = [tf.ones_like(passed.outputs[slot][0])]
            else:
                back[slot] = [grads[slot] for grads in inputs if slot in grads]
        return section.backward(passed, back)

    def _send(self, task: Task, gives: Any) -> None:
        """Sends each segment what it takes of the outputs or gradients, as soon as it is queued."""
        is_forward = task.kind == "forward"
        for source, target, _ in self._cut.links:
            mine, other = (source, target) if is_forward else (target, source)
            if mine == task.segment:
                section = self._cut.sections[other]
                slots = section.takes if is_forward else section.gives
                part = {
                    slot: gives[slot] for slot in slots if gives.get(slot) is not None
                }
                device = self._cut.segments[other].device
                self._cut.bring(part, device, partial(self._box.give, (task, other)))

    def _apply(self, device: int) -> None:
        """Does the device's update, after all devices have met if the optimizer needs that."""
        update = self._cut.update
        grads = self._cut.take_gradients(device)
        summaries: list[Any] = []
        if update.meets:
            own = update.summary(device, grads)
            for other in update.devices:
                self._box.give(("summary", device, other), own)
            summaries = [
                self._box.take(("summary", other, device)) for other in update.devices
            ]
        begins_s = self._now(device)
        update.apply(device, grads, summaries)
        self._updates.append(Updated(device, begins_s, self._now(device)))


class Pipeline:
    """A cut model at work. In a step, each device's thread does its tasks in the given order."""

    def __init__(self, cut: CutModel) -> None:
        self.cut = cut
        self.pace: PipelinePace | None = None
        self._threads = ThreadPoolExecutor(len(self.cut.update.devices))
        self._is_prepared = False

    def follow(
        self,
        devices: Sequence[Device],
        joint: JointProfile,
        micro_batch: int,
        *,
        seed: int = 0,
    ) -> None:
        """Begins to hold the devices to their profiles, if they have any."""
        profiles = [device.profile for device in devices if device.profile is not None]
        self.pace = None
        if profiles:
            cut = self.cut
            self.pace = PipelinePace(
                profiles, cut.graph, cut.segments, joint, micro_batch, seed
            )

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
        self.cut.update.begin()
        step = Step(self.cut, batch, self.pace, stamped=stamped)
        try:
            self._work(step, orders, patience_s)
        except KeyboardInterrupt:  # the step was done nevertheless
            self.cut.update.end()
            raise
        self.cut.update.end()
        if self.pace:
            step.timeline = self.pace.end(orders)
        elif stamped:
            step.timeline = step.measured()
        return step

    def _work(self, step: Step, orders: Orders, patience_s: float | None) -> None:
        """Does the step's tasks on all devices, and raises the first error of any.

        Then no device works on, as what it adds would count in the next step. One that hangs is
        not waited for.
        """
        working = set()
        for device in self.cut.update.devices:
            working.add(self._threads.submit(step.work, device, orders[device]))
        try:
            while working:
                done, working = wait(
                    working,
                    timeout=patience_s and patience_s / 4,
                    return_when="FIRST_EXCEPTION",
                )
                for future in done:
                    error = future.exception()
                    if error is not None and not isinstance(error, StoppedError):
                        raise error
                if (
                    not done
                    and patience_s is not None
                    and time.monotonic() - step.moved_s > patience_s
                ):
                    working = set()
                    step.stop()
                    device, doing = min(
                        step.doing.items(), default=(0, "waiting for another device")
                    )
                    raise TaskFailedError(device, doing)
        finally:
            wait(working, timeout=patience_s)

    def prepare(self, micro: MicroBatch) -> None:
        """Traces in this thread all that a step with such labels runs.

        What layers count meanwhile is restored. If it fails or is interrupted, the next call does
        all of it again: without its update a device would train nothing.
        """
        if self._is_prepared and self._is_traced(micro):
            return
        self._is_prepared = False
        with self.cut.uncounted():
            self._try(micro)
            while not self._is_traced(micro):
                self._try(micro)
            for device in self.cut.update.devices:
                self.cut.update.trace(device, self.cut.take_gradients(device))
        self._is_prepared = True

    def _is_traced(self, micro: MicroBatch) -> bool:
        return all(section.is_traced(micro.labels) for section in self.cut.sections)

    def _try(self, micro: MicroBatch) -> None:
        """Runs both passes of a micro-batch in each section."""
        step = Step(self.cut, [micro])
        numbers = range(len(self.cut.segments))
        for number in numbers:
            step.do(Task(number, "forward", 0))
        for section in self.cut.sections:
            section.check_borrowed(self.cut.sections)
        for number in reversed(numbers):
            step.do(Task(number, "backward", 0))
