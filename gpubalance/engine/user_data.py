"""A user's `--data` function: global batches for the engine's step, and samples to be held on the devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters import get_data_adapter

from gpubalance.engine.batches import are_open, is_batched, joined, regrouped
from gpubalance.engine.failures import own_traceback
from gpubalance.engine.feed import cleaned, samples_of
from gpubalance.engine.fitting_data import check_inputs, check_labels, check_numbers, in_order
from gpubalance.engine.labels import as_outputs
from gpubalance.engine.pool import Pool
from gpubalance.engine.step.changes import is_keras_own
from gpubalance.engine.transformations import Transformations
from gpubalance.engine.user_functions import kind_of, user_function
from gpubalance.errors import BadInput, GpubalanceError
from gpubalance.results.pulled import Remedy
from gpubalance.text import clean

_AT_A_TIME = 64  # samples that the pool reads at once
_LOOKED_AT = 64  # of the user's own batches, to see how they differ in shape and which is the longest
_PADDED = "let the dataset make the batches, and pad them: padded_batch(64)"
_ALONE = "read all of it once without gpubalance to find the sample: for batch in dataset(): pass"
_FORMS = "return a tf.data.Dataset, a PyDataset or arrays, as (x, y) or (x, y, sample_weight)"


class UserData:
    """A user's dataset for a model. Batches are (inputs, labels) or (inputs, labels, sample weights).

    Labels of a model that is not compiled get its outputs' structure; others stay as its loss takes them, and a user's
    own `train_step` gets what there is.
    Faults in the data raise BadInput, when it is made or when its first batch comes.
    """

    def __init__(self, name: str, model: Any) -> None:
        self._name = name
        self._model = model
        self._is_own_step = not is_keras_own(type(model).train_step)  # takes whatever the user gives it
        self._orders = not model.compiled
        function = user_function(name, "--data")
        self._transformations = Transformations()
        try:
            with self._transformations.noted():
                self._given = function()
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the user's own code)
            raise BadInput(f"--data {name} failed:\n{own_traceback(error)}") from None
        if not isinstance(self._given, (tf.data.Dataset, keras.utils.PyDataset)) and not _is_arrays(self._given):
            raise BadInput(f"--data {name} gave {kind_of(self._given)}, which is not a dataset", remedy=_FORMS)
        self._pool: Pool | None = None
        self._checked = False

    def usual_remedies(self) -> tuple[Remedy, ...]:
        """What usually makes such data faster, at which lines of the user's code."""
        return self._transformations.usual_remedies(self._given)

    def make(self, count: int, *, salt: int = 0) -> Any:
        """`count` of its samples as NumPy arrays; samples repeat if there are too few."""
        made = self._samples.make(count, salt)
        if made is None:
            raise self._empty()
        return made

    def longest(self, count: int) -> Any:
        """`count` samples, beginning with the largest in shape of those that were looked at."""
        return self._samples.longest(count)

    @property
    def differs(self) -> bool:
        """Whether the batches that were looked at differ in more than the number of samples."""
        return self._samples.differ

    @property
    def samples(self) -> int | None:
        """The number of samples, None if unknown; at most so many if it has not been read to its end."""
        if self._samples.whole is not None:
            return self._samples.whole
        if _is_arrays(self._given):
            return len(keras.tree.flatten(self._given)[0])
        if isinstance(self._given, keras.utils.PyDataset):
            return None
        batched = is_batched(self._given, self._model)
        count, size = int(self._given.cardinality()), self._transformations.batch_size(self._given) if batched else 1
        return count * size if count >= 0 and size else None

    def joined_from(self, global_batch: int) -> int | None:
        """The number of samples in the user's own batches if they are regrouped for this size; None if they stay."""
        size = self._samples.usual_size
        return size if self._is_open and size != global_batch else None

    def spec(self) -> Any:
        """A TensorSpec for each part of a batch; dimensions that may differ are open."""
        dataset, _ = self._dataset(None)
        ordered = tf.autograph.experimental.do_not_convert(
            lambda *parts: self._ordered(parts if len(parts) > 1 else parts[0])
        )
        spec = dataset.map(ordered).element_spec
        return tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), spec)

    def stream(self, global_batch: int) -> Iterator[Any]:
        """Batches of `global_batch` samples, epoch after epoch without end; a smaller last one is left out."""
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
        data = self._as_it_is()[0]
        return data is not None and are_open(data, self._model)

    @property
    def _samples(self) -> Pool:
        if self._pool is None:
            self._pool = Pool(self._epoch(None), looks_at=_LOOKED_AT if self._is_open else 1)
            self._pool.make(1, 0)
        return self._pool

    def _epoch(self, batch_size: int | None) -> Iterator[Any]:
        """One epoch's batches of that size if possible, as in `split.fit`; without a size, the user's own batches."""
        with self._told():
            dataset, adapter = self._dataset(batch_size)
            if adapter is not None:
                adapter.on_epoch_begin()
            try:
                for batch in dataset:
                    yield self._arranged(batch)
            finally:
                if adapter is not None:
                    adapter.on_epoch_end()

    def _dataset(self, batch_size: int | None) -> tuple[tf.data.Dataset, Any]:
        """The dataset, and Keras' adapter that begins and ends an epoch of it, if any."""
        size = batch_size or _AT_A_TIME
        data, adapter = self._as_it_is()
        if data is None:
            adapter = self._of_arrays(size)
            return adapter.get_tf_dataset(), adapter
        if not self._is_open:
            return regrouped(data, self._model, size), adapter
        # Batches of the split's own size stay as in `split.fit`, which never joins what a user has padded.
        own = batch_size is None or batch_size == self._samples.usual_size
        return regrouped(data, self._model, size) if own else joined(data, size), adapter

    def _as_it_is(self) -> tuple[tf.data.Dataset | None, Any]:
        """The dataset of the user's own samples or batches, and Keras' adapter; both None for arrays."""
        data, adapter = self._given, None
        if isinstance(data, keras.utils.PyDataset):
            with self._told():
                adapter = get_data_adapter(x=data, shuffle=False)
                data = adapter.get_tf_dataset()
        elif not isinstance(data, tf.data.Dataset):
            return None, None
        self._refuse_other_elements(data.element_spec)
        self._refuse_unknown(data)
        return data, adapter

    def _of_arrays(self, batch_size: int) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(self._given)
        try:
            return get_data_adapter(x=x, y=y, sample_weight=weights, batch_size=batch_size, shuffle=True)
        except Exception as error:  # noqa: BLE001  (Keras may raise anything)
            text = clean(str(error), 400)
            raise BadInput(
                f"--data {self._name} gave arrays that Keras can't take: {text}",
                remedy="give arrays with the same number of samples" if "cardinality" in text else _FORMS,
            ) from None

    def _refuse_other_elements(self, spec: Any) -> None:
        if not self._is_own_step and (not isinstance(spec, tuple) or len(spec) not in (2, 3)):
            has_one = not isinstance(spec, tuple) or len(spec) == 1
            parts = "one part, where training needs labels too" if has_one else f"{len(spec)} parts, which is too many"
            raise BadInput(
                f"--data {self._name}: its samples have {parts}",
                remedy="give (x, y) or (x, y, sample_weight)",
            )

    def _refuse_unknown(self, data: tf.data.Dataset) -> None:
        shapes = [getattr(spec, "shape", None) for spec in tf.nest.flatten(data.element_spec)]
        if any(shape is not None and shape.rank is None for shape in shapes):
            raise BadInput(
                f"--data {self._name}: TensorFlow does not know the shape of its samples",
                remedy="say it where a Python function makes them: tf.ensure_shape(x, shape)",
            )

    def _arranged(self, batch: Any) -> Any:
        batch = self._ordered(batch)
        samples_of(batch)
        where, is_usual = f"--data {self._name}", not self._is_own_step and getattr(self._model, "outputs", None)
        if is_usual:
            check_inputs(where, self._model, batch[0])
        if not self._checked:
            check_numbers(where, batch if isinstance(batch, tuple) else (batch,))
            if is_usual:
                check_labels(where, self._model, batch[1])
            self._checked = True
        return batch

    def _ordered(self, batch: Any) -> Any:
        batch = cleaned(batch)
        self._refuse_other_elements(batch)
        if not self._orders:
            return batch
        inputs, labels, *weights = batch
        flat = in_order(self._model, labels)
        return (
            inputs,
            as_outputs(self._model, list(flat)) if len(flat) == len(self._model.outputs) else flat,
            *weights,
        )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Makes errors in the pipeline name --data."""
        try:
            yield
        except GpubalanceError as error:
            error.message = error.message.replace("the data ", f"--data {self._name} ", 1)
            raise
        except Exception as error:  # noqa: BLE001  (the user's own code, in TensorFlow's words)
            line = _line(error)
            raise BadInput(
                f"--data {self._name} failed while it gave samples: {line}",
                remedy=_PADDED if "different shapes" in line else _ALONE,
            ) from None

    def _empty(self) -> BadInput:
        return BadInput(
            f"--data {self._name}: the dataset is empty",
            remedy="return one with samples: at least as many as the global batch",
        )

    def _too_few(self, global_batch: int) -> BadInput:
        samples = sum(samples_of(batch) for batch in self._epoch(global_batch))
        if not samples:
            return self._empty()
        return BadInput(
            f"--data {self._name} has {samples} samples, fewer than the global batch of {global_batch}",
            remedy=f"give more samples, or use smaller batches, {samples} in sum at most: for balance that is "
            f"--max-global-batch {samples}",
        )


def _is_arrays(given: Any) -> bool:
    """Whether it is (x, y) or (x, y, sample_weight), each an array or a structure of arrays."""
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        return False
    parts = [part for part in keras.tree.flatten(given) if part is not None]
    return bool(parts) and all(len(getattr(part, "shape", ())) > 0 for part in parts)


def _line(error: BaseException) -> str:
    """The first line of TensorFlow's error, without the names of its own nodes and transformations before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r"^(\{\{[^}]*\}\}\s*)+", "", lines[0] if lines else "")
    text = re.sub(r"^Error in user-defined function passed to .* iterator: \S+ ", "", text)
    return clean(text if ":" in text[:60] else f"{type(error).__name__}: {text}", 300)
