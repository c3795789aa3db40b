"""Trains the user's own model over several devices, with its layers cut as `gpubalance layers` found."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubalance.devices.machine import find_machine
from gpubalance.devices.planned import cut_devices
from gpubalance.devices.profile import IN_A_SCRIPT
from gpubalance.errors import BadInput
from gpubalance.results.layers import Layers
from gpubalance.results.records import result_of
from gpubalance.settings.device import Device, JointProfile
from gpubalance.training.cut import Cut

if TYPE_CHECKING:
    from gpubalance.training.pipelined_steps import PipelinedSteps


def load_layers(path: str | Path | Layers, *, simulate: int | str | Path | None = None) -> Pipelined:
    """The stages of a result of `gpubalance layers -o FILE`, on the devices here.

    `simulate` is the device profile, as for --simulate, of a result for simulated devices.

    Raises PlanMismatch, with the difference, if the devices here are others, BadInput for a file that is no such
    result. Warns of one for simulated devices without `simulate`.
    """
    result = result_of(path, Layers)
    if simulate is None and result.devices[0].simulated:
        warnings.warn(
            f"{path} is of simulated devices: it trains on this machine's CPU, at their pace. simulate= in load_layers "
            "says that this is meant; for GPUs, run layers without --simulate",
            stacklevel=2,
        )
        return Pipelined(result, result.devices, JointProfile())
    machine = find_machine(simulate, option=IN_A_SCRIPT)
    return Pipelined(result, cut_devices(result, machine.devices), machine.joint)


class Pipelined:
    """A model's layers in stages on devices.

    Training gives the same as one device that takes the same micro-batches and sums their gradients. Batch
    normalisation and dropout see one micro-batch at a time, as on one device with micro-batches.
    """

    def __init__(self, result: Layers, devices: Sequence[Device], joint: JointProfile) -> None:
        self.result = result
        self.devices = tuple(devices)
        self._joint = joint
        self._cut: Cut | None = None
        self._steps: PipelinedSteps | None = None

    def scope(self) -> AbstractContextManager[None]:
        """Build, load and compile the model in here: its weights are in the host's memory until it trains.

        The first call sets TensorFlow up. Raises EnvironmentFault if TensorFlow was used before with other devices.
        """
        self._there()
        return _on_the_host()

    def fit(self, model: Any, *arguments: Any, **options: Any) -> Any:
        """Keras' `model.fit`, with all its arguments, in these stages; returns its History.

        Datasets and arrays are brought into batches of the result's global batch, unless `batch_size` says otherwise;
        no batch may be larger. From then on each weight is on its stage's device; the model saves and predicts as
        before.

        Raises BadInput for a model that can't be cut, PlanMismatch for another model than the one that was cut.
        """
        return self._call("fit", model, arguments, options)

    def evaluate(self, model: Any, *arguments: Any, **options: Any) -> Any:
        """Keras' `model.evaluate`, one micro-batch after the other through the stages."""
        return self._call("evaluate", model, arguments, options)

    def predict(self, model: Any, *arguments: Any, **options: Any) -> Any:
        """Keras' `model.predict`, one micro-batch after the other through the stages."""
        return self._call("predict", model, arguments, options)

    def _there(self) -> Cut:
        """The cut on this process's devices; the first call sets TensorFlow up."""
        if self._cut is None:
            from gpubalance.training.place import take_names

            self._cut = Cut(self.result, self.devices, self._joint, take_names(self.devices))
        return self._cut

    def _call(self, name: str, model: Any, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
        from gpubalance.training import data
        from gpubalance.training.keras_functions import arguments_of
        from gpubalance.training.pipelined_steps import PipelinedSteps

        cut = self._there()
        method = getattr(type(model), name)
        bound = arguments_of(method, model, arguments, options)
        data.in_batches_of(self.result.global_batch, model, bound)
        if self._steps is None or not self._steps.are_of(model):
            self._steps = PipelinedSteps(cut, model)
        elif self._steps.is_open:
            return method(model, **bound)  # called by Keras' fit, or by a callback
        with self._steps.used(steps=bound.get("steps_per_epoch" if name == "fit" else "steps")):
            return method(model, **bound)


@contextmanager
def _on_the_host() -> Iterator[None]:
    import tensorflow as tf

    from gpubalance.engine import keras_inside

    if tf.distribute.has_strategy():
        raise BadInput("the layers' scope was entered inside the scope of other devices", remedy="un-indent it")
    with tf.device("/CPU:0"), keras_inside.without_xla():
        yield
