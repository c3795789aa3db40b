"""Trains the user's own model with its layers on several devices, as `gpubalance layers` cut it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from gpubalance.errors import BadInput
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

    def __init__(
        self, result: Layers, devices: Sequence[Device], joint: JointProfile
    ) -> None:
        super().__init__()
        self.result = result
        self.devices = tuple(devices)
        self._joint = joint

    @cached_property
    def names(self) -> tuple[str, ...]:
        """TensorFlow's names for the devices of this process; the first use sets TensorFlow up."""
        from gpubalance.engine.replicas import take_names

        return take_names(self.devices)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Build, load and compile the model in here.

        Its weights are in the host's memory until it trains. The first call sets TensorFlow up.
        Raises EnvironmentFault if TensorFlow was used before with other devices.
        """
        _ = self.names
        import tensorflow as tf

        from gpubalance.engine import keras_patches
        from gpubalance.training.measured import use_measured

        if tf.distribute.has_strategy():
            raise BadInput(
                "the scope() of a plan from gpubalance layers was entered inside the "
                "scope of other devices",
                remedy="un-indent it",
            )
        use_measured(self.result.settings.precision)
        with tf.device("/CPU:0"), keras_patches.without_xla():
            yield

    def _functions_for(self, model: Any) -> KerasFunctions:
        names = self.names
        from gpubalance.training.pipelined_steps import PipelinedSteps

        return PipelinedSteps(model, self.result, self.devices, names, self._joint)
