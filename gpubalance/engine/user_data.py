"""A user's `--data` function: global batches for the engine's step, and samples to be held on the
devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters import get_data_adapter

from gpubalance.engine.batch_sizes import batch_of, static_batch_of
from gpubalance.engine.datasets import (
    Batches,
    are_open,
    cleaned,
    is_batched,
    joined,
    regrouped,
    samples_of,
)
from gpubalance.engine.keras_inside import is_keras_own
from gpubalance.engine.labels import classes_of
from gpubalance.engine.pool import Pool
from gpubalance.engine.user_functions import user_function
from gpubalance.engine.users_lines import Made, own_traceback, reason_of
from gpubalance.errors import BadInput, GpubalanceError
from gpubalance.results.timing import Remedy

_AT_A_TIME = 64  # samples that the pool reads at once
# Of the user's own batches, to see how they differ in shape and which is the longest.
_LOOKED_AT = 64
_PADDED = "let the dataset make the batches, and pad them: padded_batch(64)"
_ALONE = "read all of it once without gpubalance to find the sample: for batch in dataset(): pass"
_PARTS = "give (x, y) or (x, y, sample_weight)"
_FORMS = "return a tf.data.Dataset, a PyDataset or arrays, as (x, y) or (x, y, sample_weight)"


class UserData(Pool):
    """A user's dataset for a model. Batches are (inputs, labels) or (inputs, labels, sample
    weights).

    A user's own `train_step` gets what there is. Faults in the data raise BadInput, when it is made
    or when its first batch comes.
    """

    def __init__(self, name: str, model: Any) -> None:
        self.where, self._model, self._checked = f"--data {name}", model, False
        # Takes whatever the user gives it.
        self._is_own_step = not is_keras_own(type(model).train_step)
        function, self._made = user_function(name, "--data"), Made()
        try:
            with self._made.noted():
                self._given = function()
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the user's own code)
            raise BadInput(f"{self.where} failed:\n{own_traceback(error)}") from None
        self._is_arrays = _is_arrays(self._given)
        if not (
            self._is_arrays or isinstance(self._given, (tf.data.Dataset, keras.utils.PyDataset))
        ):
            gave = f"{self.where} gave a value of type {type(self._given).__name__}"
            raise BadInput(f"{gave}, which is not a dataset", remedy=_FORMS)
        super().__init__(lambda: self._epoch(None), looks_at=_LOOKED_AT if self._is_open else 1)

    def usual_remedies(self) -> tuple[Remedy, ...]:
        """What usually makes such data faster, at which lines of the user's code."""
        return self._made.usual_remedies(self._given)

    @cached_property
    def own_batch(self) -> int | None:
        """The number of samples in the user's own batches; None for arrays, single samples, or
        where none is known.
        """
        given = self._given
        with self._told():
            if isinstance(given, keras.utils.PyDataset):
                return len(keras.tree.flatten(given[0])[0])
            if self._is_arrays or not is_batched(given, self._model):
                return None
            return static_batch_of(given) or batch_of(given)

    def joined_from(self, global_batch: int) -> int | None:
        """The number of samples in the user's own batches if they are regrouped for this size; None
        if they stay.
        """
        size = self.usual_size
        return size if self._is_open and size != global_batch else None

    def stream(self, global_batch: int) -> Iterator[Any]:
        """Batches of `global_batch` samples, epoch after epoch without end; a smaller last one is
        left out.
        """
        self.let_go()
        while True:
            given = 0
            for batch in self._epoch(global_batch):
                if samples_of(batch) == global_batch:
                    given += 1
                    yield batch
            if not given:
                raise self._too_few(global_batch)

    @cached_property
    def _is_open(self) -> bool:
        """Whether the user's batches may differ in more than the number of samples."""
        with self._told():
            return not self._is_arrays and are_open(self._opened(_AT_A_TIME)[0], self._model)

    def _epoch(self, batch_size: int | None) -> Iterator[Any]:
        """One epoch's batches of that size if possible, as in `split.fit`; without a size, the
        user's own batches.
        """
        size = batch_size or _AT_A_TIME
        with self._told():
            data, adapter = self._opened(size)
            # Batches of the split's own size stay as in `split.fit`, which never joins what a user
            # has padded.
            if batch_size and self._is_open and batch_size != self.usual_size:
                data = joined(data, size)
            elif not self._is_arrays:
                data = regrouped(data, self._model, size)
            adapter.on_epoch_begin()
            try:
                for batch in map(cleaned, Batches(data)):
                    self._check(batch)
                    yield batch
            finally:
                adapter.on_epoch_end()

    def _opened(self, batch_size: int) -> tuple[tf.data.Dataset, Any]:
        """The dataset of the user's own samples or batches, of arrays in batches of that size.

        Also Keras' adapter that begins and ends an epoch of it.
        """
        parts = (
            keras.utils.unpack_x_y_sample_weight(self._given)
            if self._is_arrays
            else (self._given, None, None)
        )
        given = dict(zip(("x", "y", "sample_weight"), parts, strict=True))
        adapter = get_data_adapter(**given, batch_size=batch_size, shuffle=self._is_arrays)
        data = adapter.get_tf_dataset()
        shapes = [
            spec.shape for spec in tf.nest.flatten(data.element_spec) if hasattr(spec, "shape")
        ]
        if any(shape.rank is None for shape in shapes):
            raise BadInput(
                f"{self.where}: TensorFlow does not know the shape of its samples",
                remedy="say it where a Python function makes them: tf.ensure_shape(x, shape)",
            )
        return data, adapter

    def _check(self, batch: Any) -> None:
        """Raises BadInput for a first batch that can't be trained on, if Keras would not say so in
        time.
        """
        problem = None if self._checked else next(self._problems(batch), None)
        if problem:
            raise BadInput(f"{self.where}{problem[0]}", remedy=problem[1])
        self._checked = True

    def _problems(self, batch: Any) -> Iterator[tuple[str, str]]:
        given = batch if isinstance(batch, tuple) else (batch,)
        if not self._is_own_step and len(given) not in (2, 3):
            yield f": a sample's parts must be two or three, and are {len(given)}", _PARTS
        samples_of(batch)
        is_usual = not self._is_own_step and bool(getattr(self._model, "outputs", None))
        for part, values in zip(("inputs", "labels", "sample weights"), given, strict=False):
            flat = tf.nest.flatten(values)
            if is_usual and any(one.dtype == tf.string for one in flat):
                yield f" has text among its {part}", "let it give numbers, such as those of classes"
            if any(
                bool(tf.reduce_any(tf.math.is_nan(one))) for one in flat if one.dtype.is_floating
            ):
                nan = f": the first batch has NaN among its {part}"
                yield nan, "clean the data: with NaN in it the loss is NaN too"
        for output, label, classes in classes_of(self._model, given[1]) if is_usual else ():
            low, high = (int(reduced(label)) for reduced in (tf.reduce_min, tf.reduce_max))
            if low < 0 or high >= classes:  # the loss is NaN on a GPU, and an error on a CPU
                has = f"where the model's output {output} has {classes} classes: 0 to {classes - 1}"
                remedy = "number the classes from 0, or give the model as many outputs as there are"
                yield f" gives labels from {low} to {high}, {has}", remedy

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Makes errors in the pipeline name --data."""
        try:
            yield
        except GpubalanceError:
            raise
        except Exception as error:  # noqa: BLE001  (the user's own code, in TensorFlow's words)
            line = reason_of(error)
            remedy = (
                _FORMS if self._is_arrays else _PADDED if "different shapes" in line else _ALONE
            )
            raise BadInput(
                f"{self.where} failed while it gave samples: {line}", remedy=remedy
            ) from None

    def _too_few(self, global_batch: int) -> BadInput:
        samples = sum(samples_of(batch) for batch in self._epoch(global_batch))
        remedy = (
            f"give more samples, or use smaller batches, {samples} in sum at most: for balance "
            "that is "
        )
        few = f"{self.where} has {samples} samples, fewer than the global batch of {global_batch}"
        return BadInput(few, remedy=f"{remedy}--max-global-batch {samples}")


def _is_arrays(given: Any) -> bool:
    """Whether it is (x, y) or (x, y, sample_weight), each an array or a structure of arrays."""
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        return False
    parts = [part for part in keras.tree.flatten(given) if part is not None]
    return bool(parts) and all(len(getattr(part, "shape", ())) > 0 for part in parts)
