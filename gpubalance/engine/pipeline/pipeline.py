"""Trains a cut model in micro-batches, with a thread for each device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import tensorflow as tf

from gpubalance.engine.failures import TaskFailedError
from gpubalance.engine.pipeline.cut_model import CutModel
from gpubalance.engine.pipeline.mailbox import StoppedError
from gpubalance.engine.pipeline.micro_batches import MicroBatch
from gpubalance.engine.pipeline.pace import Pace
from gpubalance.engine.pipeline.step import Step
from gpubalance.planning.pipeline.timeline import Orders, Task
from gpubalance.settings.device import Device, JointProfile


class Pipeline:
    """A cut model at work. In a step, each device's thread does its tasks in the given order."""

    def __init__(self, cut: CutModel) -> None:
        self.cut = cut
        self.pace: Pace | None = None
        self._threads = ThreadPoolExecutor(len(self.cut.update.devices))

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
            self.pace = Pace(
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
        self._work(step, orders, patience_s)
        self.cut.update.end()
        if self.pace:
            step.timeline = self.pace.end(orders)
        elif stamped:
            step.timeline = step.measured()
        return step

    def _work(self, step: Step, orders: Orders, patience_s: float | None) -> None:
        """Does the step's tasks on all devices, and raises the first error of any."""
        working = set()
        for device in self.cut.update.devices:
            working.add(self._threads.submit(step.work, device, orders[device]))
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
                step.stop()
                device, doing = min(
                    step.doing.items(), default=(0, "waiting for another device")
                )
                raise TaskFailedError(device, doing)

    def prepare(self, micro: MicroBatch) -> None:
        """Traces in this thread all that a step with such labels runs.

        What layers count meanwhile is restored.
        """
        sections = self.cut.sections
        if all(section.is_traced(micro.labels) for section in sections):
            return
        counted: list[Any] = []
        for section in sections:
            counted += section.counted
        with tf.device("/CPU:0"):  # else untrained weights would be copied to a GPU
            before = [tf.identity(variable.value) for variable in counted]
        while not all(section.is_traced(micro.labels) for section in sections):
            self._try(micro)
        for device in self.cut.update.devices:
            self.cut.update.trace(device, self.cut.take_gradients(device))
        for variable, value in zip(counted, before, strict=True):
            variable.assign(value)

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
