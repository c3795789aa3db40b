"""A user's `--data` function: it gives global batches, and samples to be held on the devices."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine import data_faults
from gpubalance.engine.datasets import (
    batch_of,
    cleaned,
    has_open_shapes,
    is_batched,
    joined,
    regrouped,
    sample_count_of,
    samples_of,
    static_batch_of,
)
from gpubalance.engine.iterators import Batches
from gpubalance.engine.keras_patches import get_data_adapter, is_keras_own
from gpubalance.engine.models import classes_of
from gpubalance.engine.user_functions import DatasetLines, user_function
from gpubalance.engine.users_errors import (
    Raised,
    keeping_raised,
    own_traceback,
    raised_by_own_code,
    reason_of,
)
from gpubalance.errors import BadInput, GpubalanceError
from gpubalance.results.timing import Remedy
from gpubalance.settings.measuring import too_few_samples

_MOST_BYTES = 1 << 30  # a larger batch repeats some samples
# The most seconds, in all, for reading more batches than are needed: a pipeline may be slow.
_SPARE_S = 10.0
# The part of all samples between the starts of two batches: the golden ratio spreads any number of
# them evenly.
_GOLDEN = 0.6180339887


class Pool:
    """Reads the user's own batches as needed; those that differ in shape are padded with zeros."""

    where: str  # what errors say that the samples come from

    def __init__(
        self, begin_epoch: Callable[[], Iterator[Any]], *, looks_at: int = 1
    ) -> None:
        """`begin_epoch` gives all batches once more; `looks_at` are read now, if that is quick."""
        self._begin_epoch = begin_epoch
        self._batches = begin_epoch()
        self._like: Any = None  # a batch, for its structure
        # Each one's arrays, of one sample, in that structure's order.
        self._samples: list[tuple[Any, ...]] = []
        self._sizes = Counter[int]()  # of the batches that were read
        self._shapes = set[Any]()
        self._bytes = 0
        self._ended = False
        self._spare_s = _SPARE_S
        self._read(1, 1, looks_at)

    def make(self, count: int, *, salt: int = 0) -> Any:
        """`count` samples as NumPy arrays, the `salt`th such batch; too few samples repeat.

        If batches differ in shape, each is equally likely to be in it. Raises BadInput for an empty
        dataset.
        """
        self._read(count, (salt + 1) * count)
        if not self._samples:
            remedy = "return a dataset with at least one global batch of samples"
            raise BadInput(f"{self.where}: the dataset is empty", remedy=remedy)
        start = salt * count
        if self.shapes_differ:
            start = int(salt * _GOLDEN % 1 * len(self._samples))
        return self._from(start, count)

    def longest(self, count: int) -> Any:
        """The same, beginning with the largest in shape of the samples that were looked at."""
        sizes = []
        for sample in self._samples:
            sizes.append(sum(values.nbytes for values in sample))
        return self._from(sizes.index(max(sizes)), count)

    @property
    def shapes_differ(self) -> bool:
        """Whether the batches read so far differ in more than the number of samples."""
        return len(self._shapes) > 1

    @property
    def usual_size(self) -> int:
        """The most frequent number of samples in the user's own batches."""
        return self._sizes.most_common(1)[0][0]

    @property
    def samples(self) -> int | None:
        """The number of samples, None if they were not read to their end."""
        return len(self._samples) if self._ended else None

    def counted(self, maximum: int, within_s: float) -> int | None:
        """The number of samples, by reading up to `maximum` of them; None if that takes longer."""
        began = time.monotonic()
        while len(self._samples) <= maximum and time.monotonic() - began < within_s:
            if not self._next():
                break
        return self.samples

    def let_go(self) -> None:
        """Ends the user's pipeline, which holds buffers; more samples come from another run."""
        self._batches = islice(self._begin_epoch(), self._sizes.total(), None)

    def _read(self, minimum: int, wanted: int, batches: int = 0) -> None:
        """Reads at least so many samples; in the spare time those `wanted`, of so many batches."""
        while len(self._samples) < minimum and self._next():
            pass
        began = time.monotonic()
        while len(self._samples) < wanted or self._sizes.total() < batches:
            if time.monotonic() - began > self._spare_s or not self._next():
                break
        self._spare_s -= time.monotonic() - began

    def _next(self) -> bool:
        """Reads a batch. Returns False if there is no other, or no room for it."""
        if self._ended or self._bytes >= _MOST_BYTES:
            return False
        batch = next(self._batches, None)
        self._ended = batch is None
        if self._ended:
            return False
        self._like = batch
        arrays = [tensor.numpy() for tensor in tf.nest.flatten(batch)]
        self._bytes += sum(array.nbytes for array in arrays)
        self._shapes.add(tuple(array.shape[1:] for array in arrays))
        size = len(arrays[0])
        self._sizes[size] += 1
        for place in range(size):
            self._samples.append(tuple(array[place : place + 1] for array in arrays))
        return True

    def _from(self, start: int, count: int) -> Any:
        """`count` samples in order from `start` on, beginning again after the last."""
        chosen = []
        for place in range(start, start + count):
            chosen.append(self._samples[place % len(self._samples)])
        arrays = [_together(values) for values in zip(*chosen, strict=True)]
        return tf.nest.pack_sequence_as(self._like, arrays)


def _together(samples: Sequence[Any]) -> Any:
    """The samples' values as one array, each padded to the longest."""
    largest = np.max([sample.shape[1:] for sample in samples], axis=0)
    whole = np.zeros((len(samples), *largest.astype(int)), samples[0].dtype)
    for place, sample in enumerate(samples):
        rows = tuple(map(slice, sample.shape))
        whole[place : place + 1][rows] = sample
    return whole


_AT_A_TIME = 64  # samples that the pool reads at once
# So many samples are counted where TensorFlow does not know their number: more than a batch has
_MOST_COUNTED = 2048
_COUNTS_WITHIN_S = 2.0
# Of the user's own batches, to see how they differ in shape and which is the longest.
_LOOKED_AT = 64
_PADDED = "let the dataset make the batches, and pad them: padded_batch(64)"
_ALONE = "read all of it once without gpubalance to find the sample: for batch in dataset(): pass"
_FORMS = "return a tf.data.Dataset, a PyDataset or arrays, as (x, y) or (x, y, sample_weight)"


def _is_dataset(given: Any) -> bool:
    return isinstance(given, tf.data.Dataset | keras.utils.PyDataset)


class UserData(Pool):
    """A user's dataset for a model.

    Batches are (inputs, labels) or (inputs, labels, sample weights); a user's own `train_step` gets
    what there is. Faults in the data raise BadInput, when it is made or when its first batch comes.
    """

    def __init__(self, name: str, model: Any) -> None:
        self.where = f"--data {name}"
        self._model = model
        self._is_checked = False
        # Takes whatever the user gives it.
        self._is_own_step = not is_keras_own(type(model).train_step)
        self._lines = DatasetLines()
        function = user_function(name, "--data")
        try:
            with self._lines.noting():
                self._given = function()
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the user's own code)
            raise BadInput(f"{self.where} failed:\n{own_traceback(error)}") from None
        self._is_arrays = _is_arrays(self._given)
        self._check_arrays()
        if not self._is_arrays and not _is_dataset(self._given):
            gave = f"{self.where} returned a value of type {type(self._given).__name__}"
            remedy = _FORMS
            if isinstance(self._given, tuple | list) and any(
                map(_is_dataset, self._given)
            ):
                remedy = "return one dataset, the training data"
            raise BadInput(f"{gave}, not a dataset", remedy=remedy)
        super().__init__(
            lambda: self._epoch(None), looks_at=_LOOKED_AT if self._is_open else 1
        )

    def _check_arrays(self) -> None:
        """Raises BadInput for arrays, or lists, that are text or of unlike lengths."""
        if not isinstance(self._given, tuple) or len(self._given) not in (2, 3):
            return
        named = zip(("x", "y", "sample_weight"), self._given, strict=False)
        with self._at_data():
            data_faults.refuse_text(self._model, *self._given[:2])
            data_faults.refuse_mismatched_lengths(list(named))

    @contextmanager
    def _at_data(self) -> Iterator[None]:
        """Makes BadInput say that it is of --data."""
        try:
            yield
        except BadInput as error:
            raise BadInput(
                f"{self.where}: {error.message}", remedy=error.remedy
            ) from None

    def usual_remedies(self) -> tuple[Remedy, ...]:
        """What usually makes such data faster, at which lines of the user's code."""
        return self._lines.usual_remedies(self._given)

    @cached_property
    def own_batch(self) -> int | None:
        """The number of samples in the user's own batches; None if there are none, or unknown."""
        data = self._given
        with self._named_errors():
            if isinstance(data, keras.utils.PyDataset):
                return len(keras.tree.flatten(data[0])[0])
            if self._is_arrays or not is_batched(data, self._model):
                return None
            return static_batch_of(data) or batch_of(data)

    @property
    def own_batch_stays(self) -> bool:
        """Whether `split.fit` leaves the user's own batches as they are."""
        return self._is_open

    @cached_property
    def epoch_samples(self) -> int | None:
        """The samples of an epoch; None without an end, and where only much reading would tell."""
        data = self._given
        if self._is_arrays:
            return len(keras.tree.flatten(data)[0])
        with self._named_errors():
            if isinstance(data, keras.utils.PyDataset):
                return _sample_count_of_parts(data)
            cardinality = int(data.cardinality())
            if cardinality == tf.data.INFINITE_CARDINALITY:
                return None
            known = cardinality if cardinality >= 0 else None
            if is_batched(data, self._model):
                known = sample_count_of(data)
        return known or self.counted(_MOST_COUNTED, _COUNTS_WITHIN_S)

    def joined_from(self, global_batch: int) -> int | None:
        """The number of samples in the user's own batches, if they are regrouped for this size."""
        size = self.usual_size
        return size if self._is_open and size != global_batch else None

    def stream(self, global_batch: int) -> Iterator[Any]:
        """Batches of `global_batch` samples, epoch after epoch; a smaller last one is left out."""
        self.let_go()
        while True:
            is_empty = True
            for batch in self._epoch(global_batch):
                if samples_of(batch) == global_batch:
                    is_empty = False
                    yield batch
            if is_empty:
                raise self._too_few(global_batch)

    @cached_property
    def _is_open(self) -> bool:
        """Whether the user's batches may differ in more than the number of samples."""
        if self._is_arrays:
            return False
        with self._named_errors():
            data, _ = self._opened(_AT_A_TIME)
            return has_open_shapes(data, self._model)

    def _epoch(self, batch_size: int | None) -> Iterator[Any]:
        """One epoch's batches of that size, as in `split.fit`; without a size, the user's own."""
        size = batch_size or _AT_A_TIME
        with self._named_errors():
            data, adapter = self._opened(size)
            # Batches of the split's own size stay as in `split.fit`, which never joins what a user
            # has padded.
            if batch_size and self._is_open and batch_size != self.usual_size:
                data = joined(data, size)
            elif not self._is_arrays:
                data = regrouped(data, self._model, size)
            self._check_first_samples(size)
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
        if self._is_arrays:
            parts = keras.utils.unpack_x_y_sample_weight(self._given)
            adapter = get_data_adapter(*parts, batch_size=batch_size, shuffle=True)
        else:
            adapter = get_data_adapter(self._given)
        data = adapter.get_tf_dataset()
        for spec in tf.nest.flatten(data.element_spec):
            if hasattr(spec, "shape") and spec.shape.rank is None:
                raise BadInput(
                    f"{self.where}: TensorFlow does not know the shape of its samples",
                    remedy="set it where a Python function makes the samples: "
                    "tf.ensure_shape(x, shape)",
                )
        return data, adapter

    def _check_first_samples(self, count: int) -> None:
        """Checks that many arrays' samples in the user's order; batches of arrays are shuffled."""
        if self._is_arrays and not self._is_checked:
            parts = keras.utils.unpack_x_y_sample_weight(self._given)
            adapter = get_data_adapter(*parts, batch_size=count, shuffle=False)
            for batch in Batches(adapter.get_tf_dataset().take(1)):
                self._check(cleaned(batch))

    def _check(self, batch: Any) -> None:
        """Raises BadInput for a first batch that can't be trained on.

        That is, where Keras would not say so in time.
        """
        if self._is_checked:
            return
        parts = batch if isinstance(batch, tuple) else (batch,)
        if not self._is_own_step and len(parts) not in (2, 3):
            raise BadInput(
                f"{self.where}: a sample must have two or three parts, not "
                f"{len(parts)}",
                remedy="give (x, y) or (x, y, sample_weight)",
            )
        with self._at_data():
            samples_of(batch)
        is_usual = not self._is_own_step and bool(getattr(self._model, "outputs", None))
        for name, part in zip(
            ("inputs", "labels", "sample weights"), parts, strict=False
        ):
            for values in tf.nest.flatten(part):
                self._check_values(name, values, is_usual=is_usual)
        if is_usual:
            self._check_classes(parts[1])
        self._is_checked = True

    def _check_values(self, name: str, values: Any, *, is_usual: bool) -> None:
        if is_usual and values.dtype == tf.string:
            remedy = "return numbers, for example from keras.layers.TextVectorization"
            if name == "labels":
                remedy = data_faults.TEXT_LABELS
            raise BadInput(f"{self.where} has text among its {name}", remedy=remedy)
        if values.dtype.is_floating and tf.reduce_any(tf.math.is_nan(values)):
            raise BadInput(
                f"{self.where}: the first batch has NaN among its {name}",
                remedy="remove NaN from the data: with NaN the loss is NaN too",
            )

    def _check_classes(self, labels: Any) -> None:
        for output, label, classes in classes_of(self._model, labels):
            low = int(tf.reduce_min(label))
            high = int(tf.reduce_max(label))
            # The loss is NaN on a GPU, and an error on a CPU
            if low < 0 or high >= classes:
                raise BadInput(
                    f"{self.where} has labels from {low} to {high}, but the model's "
                    f"output {output} has {classes} classes: 0 to {classes - 1}",
                    remedy="number the classes from 0, or give the model one output "
                    "per class",
                )

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Makes errors in the pipeline name --data."""
        with keeping_raised():
            try:
                yield
            except GpubalanceError:
                raise
            except Exception as error:  # noqa: BLE001  (the user's own code, as TensorFlow tells)
                raised = raised_by_own_code(error)
                cause = raised.exception() if raised else None
                raise self._failed(error, raised) from cause

    def _failed(self, error: Exception, raised: Raised | None) -> BadInput:
        line = reason_of(error)
        remedy = _ALONE
        if self._is_arrays:
            remedy = _FORMS
        elif "different shapes" in line:
            remedy = _PADDED
        if raised is not None:
            line += f" ({raised.place})"
        return BadInput(
            f"{self.where} failed while it produced samples: {line}", remedy=remedy
        )

    def _too_few(self, global_batch: int) -> BadInput:
        samples = sum(samples_of(batch) for batch in self._epoch(global_batch))
        return too_few_samples(self.where, samples, global_batch)


def _sample_count_of_parts(data: Any) -> int | None:
    """The samples of a PyDataset, of which only the last batch may be smaller."""
    batches = data.num_batches
    if not batches:
        return None
    first = len(keras.tree.flatten(data[0])[0])
    last = len(keras.tree.flatten(data[batches - 1])[0])
    return int((batches - 1) * first + last)


def _is_arrays(value: Any) -> bool:
    """Whether it is (x, y) or (x, y, sample_weight), each an array or a structure of arrays."""
    if not isinstance(value, tuple) or len(value) not in (2, 3):
        return False
    parts = [part for part in keras.tree.flatten(value) if part is not None]
    return bool(parts) and all(len(getattr(part, "shape", ())) > 0 for part in parts)
