"""Keras' train, test and predict functions for a model whose layers are on several devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine import data_faults
from gpubalance.engine.datasets import cleaned, samples_of
from gpubalance.engine.failures import TaskFailedError, failing_replica
from gpubalance.engine.keras_patches import (
    forget_traces,
    is_keras_own,
    losses_of,
    name_of,
)
from gpubalance.engine.pipeline.blocks import Blocks, Calls
from gpubalance.engine.pipeline.cut_model import CutModel
from gpubalance.engine.pipeline.micro_batches import (
    MicroBatch,
    micro_batch_of,
    reductions_of,
    refuse_model,
)
from gpubalance.engine.pipeline.pipeline import Pipeline
from gpubalance.engine.step.parity import NEITHER, TRIED_SAMPLES
from gpubalance.engine.user_functions import warn_user
from gpubalance.engine.users_errors import own_code_named
from gpubalance.errors import BadInput, PlanMismatch
from gpubalance.planning.pipeline.problem import Segment
from gpubalance.results.layers import Layers
from gpubalance.settings.device import Device, JointProfile
from gpubalance.training import data, measured
from gpubalance.training.keras_functions import KerasFunctions
from gpubalance.training.memory import ran_out, stage_out_of_memory

# The losses of parts of a batch add up to the whole's if they differ by less than this part.
_NEAR = 1e-4


def check_loss(
    model: Any, samples: int, maximum: int, losses: Callable[[slice], Any]
) -> None:
    """Tries the loss of up to `maximum` samples, and what layers add to it, in two parts.

    `losses` gives an array of the loss and of what each layer adds, for a slice of the samples.
    Raises BadInput for one that sums over the batch; warns of neither sum nor mean.
    """
    count = min(TRIED_SAMPLES, maximum, samples)
    if count < 2:
        return
    stride = samples // count
    cut = count // 4 or 1
    with uncounted(model):
        whole = losses(slice(0, count * stride, stride))
        first = losses(slice(0, cut * stride, stride))
        rest = losses(slice(cut * stride, count * stride, stride))
    near = _NEAR * np.max(np.abs([whole, first, rest]), axis=0)
    mean = (cut * first + (count - cut) * rest) / count
    is_mean = np.abs(mean - whole) <= near
    is_sum = np.abs(first + rest - whole) <= near
    is_summed = set(reductions_of(model._compile_loss)) == {"sum"}
    for place in np.flatnonzero(~is_mean):
        of_layers = bool(place)
        if of_layers or not is_summed:
            _refuse_or_warn(model, of_layers=of_layers, is_sum=bool(is_sum[place]))


def _refuse_or_warn(model: Any, *, of_layers: bool, is_sum: bool) -> None:
    if of_layers:
        names = [
            layer.name for layer in model._flatten_layers() if not is_keras_own(layer)
        ]
        what = f"what layers of the model {model.name} add to its loss (own layers: "
        remedy = "add_loss(ops.mean(loss))"
    else:
        names = list(map(name_of, losses_of(model._compile_loss)))
        what = f"the loss of the model {model.name} ("
        remedy = "return one value per sample"
    what += f"{', '.join(names)})"
    if is_sum:
        raise BadInput(
            f"{what} sums over the batch and returns one number, which micro-batches "
            "would wrongly treat as a mean (also if the sum is divided by a fixed "
            "number)",
            remedy=remedy,
        )
    warn_user(f"{what} is {NEITHER}")


@contextlib.contextmanager
def uncounted(model: Any) -> Iterator[None]:
    """Undoes what the compiled losses' means count inside the block, also if it fails.

    Layers' metrics keep what they count.
    """
    loss = model._compile_loss
    before = {}
    for metric in loss.metrics:
        for variable in metric.variables:
            before[id(variable)] = tf.identity(variable.value)
    try:
        yield
    finally:
        for metric in loss.metrics:  # the first loss made some
            for variable in metric.variables:
                value = before.get(id(variable), tf.zeros_like(variable.value))
                variable.assign(value)


# (inputs,), (inputs, labels) or (inputs, labels, sample weights)
Parts = tuple[Any, ...]


class PipelinedSteps(KerasFunctions):
    """The functions for one model as it is compiled now, traced on first use."""

    def __init__(
        self,
        model: Any,
        result: Layers,
        devices: Sequence[Device],
        names: Sequence[str],
        joint: JointProfile,
    ) -> None:
        super().__init__(model)
        self._result = result
        self._devices = devices
        self._calls = Calls(model)
        refuse_model(model)
        with self._memory_guard():
            self._pipeline = Pipeline(self._cut_on(names))
        self._pipeline.follow(devices, joint, result.micro_batch)
        self._logs = tf.function(self._metrics, autograph=False, reduce_retracing=True)
        self._is_tried = False
        # Of the latest batch, for an error to name: its inputs' TensorSpecs, and if it is a test.
        self._input_specs: Any = None
        self._tests = False

    @property
    def is_current(self) -> bool:
        """Whether the model has neither been compiled again nor been cut otherwise."""
        return super().is_current and self._pipeline.cut.is_in_place

    def call(self, method: Callable[..., Any], options: dict[str, Any]) -> Any:
        """Calls Keras' method, with the data in batches of the result's global batch."""
        name = method.__name__
        trains = name == "fit"
        data.check(options, self.model, devices=1, trains=trains)
        if trains:
            measured.warn_of_precision(self.model, self._result.settings.precision)
        data.bring_into_batches(options, self._result.global_batch, self.model)
        doing = f"{name} of the model {self.model.name}"
        try:
            with own_code_named(doing), self.called_by_keras(options):
                return method(self.model, **options)
        except tf.errors.InvalidArgumentError as error:
            raise data_faults.of_graph(
                error,
                self.model,
                name,
                self._input_specs,
                validates=trains and self._tests,
            ) from None
        except ValueError as error:
            fault = data_faults.of_labels(error) or data_faults.of_inputs(
                self.model, self._input_specs, validates=trains and self._tests
            )
            if fault is not None:
                raise fault from None
            raise

    def _blocks(self) -> Blocks:
        """The result's blocks in this model. Raises PlanMismatch if they differ.

        Names are not compared, as Keras continues its numbering in a second model.
        """
        starts = [0, *accumulate(block.calls for block in self._result.blocks)]
        calls = starts.pop()
        if calls == len(
            self._calls.calls
        ) and self._calls.in_the_way().keys().isdisjoint(starts):
            blocks = Blocks(self._calls, tuple(starts))
            weights = [block.weights_bytes for block in blocks.graph.blocks]
            if weights == [block.weights_bytes for block in self._result.blocks]:
                return blocks
        raise PlanMismatch(
            f"the model {self.model.name} has other layers than "
            f"{self._result.model.name}, for which the cut was made",
            remedy="cut this model: gpubalance layers --model FILE.py:FUNCTION",
        )

    def _cut_on(self, names: Sequence[str]) -> CutModel:
        """The model cut, its weights and their optimizer state moved to the devices."""
        model = self.model
        optimizer = model.optimizer if model.compiled else keras.optimizers.SGD()
        segments = tuple(Segment(*segment) for segment in self._result.segments)
        forget_traces(model)  # first, as the move may fail half-way
        try:
            return CutModel(model, self._blocks(), segments, names, optimizer)
        except tf.errors.OpError as error:
            device = failing_replica(str(error), names)
            if device is None:
                raise
            raise TaskFailedError(device, "taking its stage's weights") from error

    def trace_again(self, what: str) -> None:
        """Has the next training check again that no layer was frozen or unfrozen.

        Which layers are trained is fixed when the model is cut, until it is compiled again.
        """
        if what == "train":
            self._is_tried = False

    def predict(self, batches: Sequence[Any]) -> Any:
        """The outputs for all samples of some batches, in their order."""
        outputs = []
        for batch in batches:
            self._input_specs = data_faults.input_specs(batch)
            for micro_batch in self._micro_batches(_parts(batch)[:1]):
                outputs.append(self._outputs(micro_batch)[0])
        return self._together(outputs)

    def train(self, iterator: Iterator[Any]) -> Any:
        """Trains `steps_per_execution` steps, one after the other."""
        return self._several(iterator, self._train_on)

    def _train_on(self, iterator: Iterator[Any]) -> Any:
        parts = self._next_parts(iterator, tests=False)
        self._refuse_larger(samples_of(parts))
        if not self._is_tried:
            self._refuse_trainable_changes()
            self._try(parts)
            self._is_tried = True
        micro_batches = self._micro_batches(parts)
        orders = self._result.timeline.orders(len(self._devices), len(micro_batches))
        # Keras would count each micro-batch alike, whatever its size.
        with uncounted(self.model), self._memory_guard():
            done = self._pipeline.step(micro_batches, orders)
        outputs = self._together(list(map(self._calls.packed, done.finals)))
        if self.model._compile_loss.metrics:
            self._loss_of(parts, outputs)
        return self._logged(parts, outputs, sum(map(float, done.losses)))

    def _next_parts(self, iterator: Iterator[Any], *, tests: bool) -> Parts:
        batch = next(iterator)
        self._input_specs = data_faults.input_specs(batch)
        self._tests = tests
        return _labelled(batch)

    def _test_on(self, iterator: Iterator[Any]) -> Any:
        parts = self._next_parts(iterator, tests=True)
        each = []
        added = 0.0
        for micro_batch in self._micro_batches(parts):
            outputs, of_layers = self._outputs(micro_batch)
            each.append(outputs)
            # Layers add a mean over the micro-batch to the loss.
            added += micro_batch.samples * sum(map(float, of_layers))
        whole = self._together(each)
        loss = self._loss_of(parts, whole) + added / samples_of(parts)
        return self._logged(parts, whole, loss)

    def _loss_of(self, parts: Parts, outputs: Any) -> float:
        """The compiled loss of a whole batch, which also counts each output's loss."""
        _, labels, *weights = parts
        with tf.device("/CPU:0"):
            return float(self.model._compile_loss(labels, outputs, *weights))

    def _outputs(self, micro_batch: MicroBatch) -> tuple[Any, Any]:
        """The outputs of a micro-batch, and what each layer adds to the loss."""
        with self._memory_guard():
            return self._pipeline.cut.infer(micro_batch)

    @contextmanager
    def _memory_guard(self) -> Iterator[None]:
        """Inside the block an out-of-memory error names the device and what it was doing."""
        try:
            yield
        except TaskFailedError as failed:
            cause = failed.__cause__
            if ran_out(cause):
                raise stage_out_of_memory(
                    self._result, self._devices, failed
                ) from cause
            raise (cause or failed) from None

    def _try(self, parts: Parts) -> None:
        """Tries the loss in parts of a batch, at most of a micro-batch: see `check_loss`."""

        def losses(rows: slice) -> Any:
            some = _rows(parts, rows)
            outputs, added = self._outputs(micro_batch_of(some[:1], self._calls))
            return np.array([self._loss_of(some, outputs), *map(float, added)])

        with self._pipeline.cut.uncounted():
            check_loss(self.model, samples_of(parts), self._result.micro_batch, losses)

    def _together(self, outputs: Sequence[Any]) -> Any:
        """The outputs of all micro-batches as one, in the host's memory."""
        with tf.device("/CPU:0"):
            return tf.nest.map_structure(
                lambda *parts: tf.concat(parts, axis=0), *outputs
            )

    def _logged(self, parts: Parts, outputs: Any, loss: float) -> Any:
        """Keras' metrics and logs for all samples of a batch at once."""
        inputs, *labels = parts
        with tf.device("/CPU:0"):
            return self._logs(inputs, labels, outputs, tf.constant(loss))

    def _metrics(
        self, inputs: Any, labels: Sequence[Any], outputs: Any, loss: Any
    ) -> Any:
        samples = tf.shape(tf.nest.flatten(inputs)[0])[0]
        self.model._loss_tracker.update_state(loss, sample_weight=samples)
        weights = labels[1] if len(labels) > 1 else None
        return self.model.compute_metrics(inputs, labels[0], outputs, weights)

    def _refuse_trainable_changes(self) -> None:
        for section in self._pipeline.cut.sections:
            for variable in section.trainable_changes:
                raise BadInput(
                    f"the weight {variable.path} was frozen or unfrozen after the "
                    f"first fit, evaluate or predict had cut the model "
                    f"{self.model.name}",
                    remedy="compile the model again, in the scope of layers, after "
                    "trainable is set",
                )

    def _refuse_larger(self, samples: int) -> None:
        maximum = self._result.global_batch
        if samples > maximum:
            raise BadInput(
                f"a batch of {samples} is too large: the cut is for {maximum} samples "
                "a step",
                remedy=f"use batch_size={maximum} or less",
            )

    def _micro_batches(self, parts: Parts) -> list[MicroBatch]:
        """The batch in micro-batches of the measured size; the last one may be smaller."""
        samples = samples_of(parts)
        size = self._result.micro_batch
        micro_batches = []
        for start in range(0, samples, size):
            rows = slice(start, start + size)
            micro_batches.append(micro_batch_of(_rows(parts, rows), self._calls))
        return micro_batches


def _parts(batch: Any) -> Parts:
    parts = keras.utils.unpack_x_y_sample_weight(cleaned(batch))
    return tuple(part for part in parts if part is not None)


def _labelled(batch: Any) -> Parts:
    parts = _parts(batch)
    if len(parts) == 1:
        raise data_faults.no_labels()
    return parts


def _rows(parts: Parts, rows: slice) -> Any:
    return tf.nest.map_structure(lambda values: values[rows], parts)
