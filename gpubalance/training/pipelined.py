"""Trains the user's own model over several devices, with its layers cut as `gpubalance layers`
found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from gpubalance.errors import BadInput, OutOfMemory
from gpubalance.numbers.units import format_bytes
from gpubalance.planning.pipeline.problem import Segment
from gpubalance.planning.pipeline.timeline import Task
from gpubalance.results.layers import Layers
from gpubalance.settings.device import Device, JointProfile
from gpubalance.training.keras_functions import KerasFunctions, Trainer


class Pipelined(Trainer):
    """A model's layers in stages on devices.

    Training gives the same as one device that takes the same micro-batches and sums their
    gradients. Batch normalisation and dropout see one micro-batch at a time, as on one device with
    micro-batches. No batch may be larger than the result's global batch. Once it trains, each
    weight is on its stage's device; the model saves and predicts as before. `fit` raises BadInput
    for a model that can't be cut, PlanMismatch for another than the one that was cut.
    """

    called = "layers"

    def __init__(self, result: Layers, devices: Sequence[Device], joint: JointProfile) -> None:
        super().__init__()
        self.result, self.joint = result, joint
        self.devices = tuple(devices)
        self.segments = tuple(Segment(*one) for one in result.segments)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """TensorFlow's names for the devices of this process; the first use sets TensorFlow up."""
        from gpubalance.engine.place import take_names

        return take_names(self.devices)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Build, load and compile the model in here: its weights are in the host's memory until it
        trains.

        The first call sets TensorFlow up. Raises EnvironmentFault if TensorFlow was used before
        with other devices.
        """
        _ = self.names
        import tensorflow as tf

        from gpubalance.engine import keras_inside
        from gpubalance.training.measured import use_measured

        if tf.distribute.has_strategy():
            raise BadInput(
                "the layers' scope was entered inside the scope of other devices",
                remedy="un-indent it",
            )
        use_measured(self.result.settings.precision)
        with tf.device("/CPU:0"), keras_inside.without_xla():
            yield

    def _functions_for(self, model: Any) -> KerasFunctions:
        _ = self.names
        from gpubalance.training.pipelined_steps import PipelinedSteps

        return PipelinedSteps(self, model)

    def orders(self, micro_batches: int) -> list[list[Task]]:
        """Each device's tasks in the measured order; a smaller batch lacks the last micro-batches'
        tasks.
        """
        orders: list[list[Task]] = [[] for _ in self.devices]
        for one in sorted(self.result.timeline.tasks, key=lambda one: one.start_s):
            if one.micro_batch < micro_batches:
                orders[one.device].append(Task(one.segment, one.kind, one.micro_batch))
        return orders

    def out_of_memory(self, device: int, doing: str) -> OutOfMemory:
        """The error of a device that holds less than when it was measured, or whose part of the
        model has grown.
        """
        peak = next(
            (one.memory_peak_bytes for one in self.result.stages if one.device == device), None
        )
        before = (
            f": it held {format_bytes(peak)} when the model was cut" if peak is not None else ""
        )
        error = OutOfMemory(
            f"{self.devices[device].label} ran out of memory in {doing}{before}", replica=device
        )
        error.remedy = (
            "cut it again: gpubalance layers --margin 1GiB leaves more memory free, and with "
            "a smaller --micro-batch "
            "its parts are smaller"
        )
        return error
