"""Keras' train, test and predict functions for a model whose layers are on several devices."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine.failures import TaskFailedError, memory_row
from gpubalance.engine.keras_inside import is_keras_own, losses_of, name_of
from gpubalance.engine.pipeline.blocks import Blocks
from gpubalance.engine.pipeline.calls import Calls
from gpubalance.engine.pipeline.micro_batches import (
    MicroBatch,
    micro_batch_of,
    reductions_of,
    refuse_model,
)
from gpubalance.engine.pipeline.pipeline import Pipeline
from gpubalance.engine.step.parity import NEITHER, TRIED
from gpubalance.engine.users_lines import users_line
from gpubalance.errors import BadInput, PlanMismatch
from gpubalance.training import data, measured
from gpubalance.training.keras_functions import KerasFunctions
from gpubalance.training.pipelined import Pipelined

# The losses of parts of a batch add up to the whole's if they differ by less than this part.
_NEAR = 1e-4


class PipelinedSteps(KerasFunctions):
    """The functions for one model as it is compiled now, traced on first use."""

    def __init__(self, cut: Pipelined, model: Any) -> None:
        super().__init__(model)
        self._cut = cut
        self._calls = Calls(model)
        refuse_model(model)
        optimizer = model.optimizer if model.compiled else keras.optimizers.SGD()
        self._pipeline = Pipeline(model, self._blocks(), cut.segments, cut.names, optimizer)
        self._pipeline.follow(cut.devices, cut.joint, cut.result.micro_batch)
        self._logs = tf.function(self._metrics, autograph=False, reduce_retracing=True)
        self._is_tried = False

    def call(self, method: Callable[..., Any], options: dict[str, Any]) -> Any:
        """Calls Keras' method, with the data in batches of the result's global batch."""
        wanted = self._cut.result.settings.precision
        text = measured.unlike_precision(self.model, wanted) if method.__name__ == "fit" else ""
        if text:
            warnings.warn_explicit(text, UserWarning, *users_line())
        data.in_batches_of(self._cut.result.global_batch, self.model, options)
        with self.used(options):
            return method(self.model, **options)

    def _blocks(self) -> Blocks:
        """The result's blocks in this model. Raises PlanMismatch if they differ.

        Names are not compared, as Keras continues its numbering in a second model.
        """
        starts = [0, *accumulate(block.calls for block in self._cut.result.blocks)]
        if starts.pop() == len(self._calls.calls) and not self._calls.in_the_way().keys() & {
            *starts
        }:
            blocks = Blocks(self._calls, tuple(starts))
            pairs = zip(blocks.graph.blocks, self._cut.result.blocks, strict=True)
            if all(mine.weights_bytes == its.weights_bytes for mine, its in pairs):
                return blocks
        raise PlanMismatch(
            f"the model {self.model.name} has other layers than "
            f"{self._cut.result.model.name}, which was cut",
            remedy="gpubalance layers --model FILE.py:FUNCTION cuts this one",
        )

    def predict(self, batches: Sequence[Any]) -> Any:
        """The outputs for all samples of some batches, in their order."""
        found = [
            self._outputs(micro)[0]
            for batch in batches
            for micro in self._micro_batches(_parts(batch)[:1])
        ]
        return self._together(found)

    def _train_on(self, iterator: Iterator[Any]) -> Any:
        given = _parts(next(iterator))
        if not self._is_tried:
            self._try(given)
            self._is_tried = True
        batch = self._micro_batches(given)
        orders = self._cut.orders(len(batch))
        with _uncounted(self.model):  # it would count each micro-batch alike, whatever its size
            done = self._guarded(lambda: self._pipeline.step(batch, orders))
        outputs = self._together([self._calls.packed(one) for one in done.finals])
        if self.model._compile_loss.metrics:
            self._loss_of(given, outputs)
        return self._logged(given, outputs, sum(map(float, done.losses)))

    def _test_on(self, iterator: Iterator[Any]) -> Any:
        given = _parts(next(iterator))
        batch = self._micro_batches(given)
        found = [self._outputs(micro) for micro in batch]
        outputs = self._together([one for one, _ in found])
        # Layers add a mean over the micro-batch to the loss.
        of_each = [
            micro.samples * sum(map(float, added))
            for micro, (_, added) in zip(batch, found, strict=True)
        ]
        added = sum(of_each) / sum(micro.samples for micro in batch)
        return self._logged(given, outputs, self._loss_of(given, outputs) + added)

    def _loss_of(self, given: tuple[Any, ...], outputs: Any) -> float:
        """The compiled loss of a whole batch, which also counts each output's loss."""
        _, labels, *weights = given
        with tf.device("/CPU:0"):
            return float(self.model._compile_loss(labels, outputs, *weights))

    def _outputs(self, micro: MicroBatch) -> tuple[Any, Any]:
        return self._guarded(lambda: self._pipeline.cut.infer(micro))  # type: ignore[no-any-return]

    def _guarded(self, work: Callable[[], Any]) -> Any:
        """The result of the work. An out-of-memory error names the device and what it was doing."""
        try:
            return work()
        except TaskFailedError as failed:
            cause = failed.__cause__
            if isinstance(cause, tf.errors.ResourceExhaustedError) or (cause and memory_row(cause)):
                raise self._cut.out_of_memory(failed.device, failed.doing) from cause
            raise (cause or failed) from None

    def _try(self, given: tuple[Any, ...]) -> None:
        """Tries the loss, and what layers add to it, in parts of a batch, at most of a micro-batch.

        Raises BadInput for one that sums over the batch; warns of neither sum nor mean.
        """
        samples = int(tf.nest.flatten(given)[0].shape[0])
        count = min(TRIED, self._cut.result.micro_batch, samples)
        cut, step = count // 4 or 1, samples // count
        if count < 2:
            return

        def of(at: slice) -> Any:
            some = tf.nest.map_structure(lambda one: one[: count * step : step][at], given)
            outputs, added = self._outputs(micro_batch_of(some[:1], self._calls))
            return np.array([self._loss_of(some, outputs), *map(float, added)])

        with _uncounted(self.model):
            whole, first, rest = of(slice(None)), of(slice(cut)), of(slice(cut, None))
        near = _NEAR * np.max(np.abs([whole, first, rest]), axis=0)
        mean = (cut * first + (count - cut) * rest) / count
        is_summed = {*reductions_of(self.model._compile_loss)} == {"sum"}
        for place in np.flatnonzero(np.abs(mean - whole) > near):
            if place or not is_summed:
                is_sum = (np.abs(first + rest - whole) <= near)[place]
                _tell(self.model, of_layers=bool(place), is_sum=bool(is_sum))

    def _together(self, outputs: Sequence[Any]) -> Any:
        """The outputs of all micro-batches as one, in the host's memory."""
        with tf.device("/CPU:0"):
            return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)

    def _logged(self, given: tuple[Any, ...], outputs: Any, loss: float) -> Any:
        """Keras' metrics and logs for all samples of a batch at once."""
        inputs, *labels = given
        with tf.device("/CPU:0"):
            return self._logs(inputs, labels, outputs, tf.constant(loss))

    def _metrics(self, inputs: Any, labels: Sequence[Any], outputs: Any, loss: Any) -> Any:
        model, weights = self.model, labels[1] if len(labels) > 1 else None
        samples = tf.shape(tf.nest.flatten(inputs)[0])[0]
        model._loss_tracker.update_state(loss, sample_weight=samples)
        return model.compute_metrics(inputs, labels[0], outputs, weights)

    def _micro_batches(self, given: tuple[Any, ...]) -> list[MicroBatch]:
        """The batch in micro-batches of the measured size; the last one may be smaller."""
        result = self._cut.result
        samples, size = int(tf.nest.flatten(given)[0].shape[0]), result.micro_batch
        if samples > result.global_batch:
            raise BadInput(
                f"a batch of {samples}, where the layers were cut for {result.global_batch} "
                "in a step",
                remedy=f"batch_size={result.global_batch}, or less",
            )
        return [
            micro_batch_of(
                tf.nest.map_structure(lambda one, at=at: one[at : at + size], given), self._calls
            )
            for at in range(0, samples, size)
        ]


@contextlib.contextmanager
def _uncounted(model: Any) -> Iterator[None]:
    """Undoes what the compiled losses' means count inside the block; layers' own metrics keep what
    they count.
    """
    loss = model._compile_loss
    before = {
        id(variable): tf.identity(variable.value)
        for metric in loss.metrics
        for variable in metric.variables
    }
    yield
    # The first loss made some.
    for variable in (variable for metric in loss.metrics for variable in metric.variables):
        variable.assign(before.get(id(variable), tf.zeros_like(variable.value)))


def _parts(batch: Any) -> tuple[Any, ...]:
    """(inputs,), (inputs, labels) or (inputs, labels, sample weights)."""
    return tuple(one for one in keras.utils.unpack_x_y_sample_weight(batch) if one is not None)


def _tell(model: Any, *, of_layers: bool, is_sum: bool) -> None:
    given = ", ".join(map(name_of, losses_of(model._compile_loss)))
    what, remedy = f"the loss of the model {model.name} ({given})", "return a value for each sample"
    if of_layers:
        own = [layer.name for layer in model._flatten_layers() if not is_keras_own(layer)]
        what = (
            f"what layers of the model {model.name} add to its loss (own layers: {', '.join(own)})"
        )
        remedy = "add_loss(ops.mean(loss))"
    if is_sum:
        raise BadInput(
            f"{what} sums over the batch and returns one number, which is taken for a mean "
            "when a batch is divided (a "
            "sum divided by a fixed number is one, too)",
            remedy=remedy,
        )
    warnings.warn_explicit(f"{what} is {NEITHER}", UserWarning, *users_line())
