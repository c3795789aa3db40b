"""What a user's `--data` function gives, in global batches for the engine's step and as samples to be held."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import get_data_adapter

from gpubalance.engine.batches import is_batched, regrouped
from gpubalance.engine.failures import own_traceback
from gpubalance.engine.feed import cleaned, samples_of
from gpubalance.engine.fitting_data import check_first, in_order
from gpubalance.engine.transformations import Transformations
from gpubalance.engine.user_functions import user_function
from gpubalance.errors import BadInput, GpubalanceError
from gpubalance.results.pulled import Change, Mend
from gpubalance.text import clean

_AT_A_TIME = 64  # samples that are read at once into those that are held
_MOST_HELD_BYTES = 1 << 30  # on the host; a larger batch has some of its samples several times
_FORMS = "return a tf.data.Dataset, a PyDataset or arrays, as (x, y) or (x, y, sample_weight)"


class UserData:
    """A dataset of the user's, for a model. Batches are (inputs, labels) or (inputs, labels, sample weights).

    Labels are a tuple in the order of the model's outputs; of a compiled model they stay as they are, as its loss takes
    them. Whatever is wrong with it raises BadInput, when it is made or when its first batch comes.
    """

    def __init__(self, name: str, model: Any) -> None:
        self._name = name
        self._model = model
        function = user_function(name, "--data")
        self._transformations = Transformations()
        try:
            with self._transformations.noted():
                self._given = function()
        except Exception as error:  # noqa: BLE001  (the user's own code)
            raise BadInput(f"--data {name} failed:\n{own_traceback(error)}") from None
        if not isinstance(self._given, (tf.data.Dataset, keras.utils.PyDataset)) and not _is_arrays(self._given):
            raise BadInput(f"--data {name} gave {_kind(self._given)}, which is no dataset", remedy=_FORMS)
        self._held: list[Any] = []
        self._reading: Iterator[Any] | None = None
        self._checked = False

    def mends(self) -> tuple[Mend, ...]:
        """Changes that may make it faster, by what it is made of; none are known of what is no tf.data.Dataset."""
        return tuple(self._transformations.mends(self._given))

    def changed(self, change: Change) -> UserData:
        """The same with that change."""
        other = copy(self)
        other._given = self._transformations.changed(self._given, change)
        return other

    def make(self, count: int, *, salt: int = 0) -> Any:
        """`count` of its samples as NumPy arrays, some several times where there are not so many."""
        pool = self._pool(count)
        size = len(tf.nest.flatten(pool)[0])
        places = (salt * count + np.arange(count)) % size
        return tf.nest.map_structure(lambda values: values[places], pool)

    def stream(self, global_batch: int) -> Iterator[Any]:
        """Batches of so many samples, epoch after epoch without end; a smaller last one is left out."""
        while True:
            given = 0
            for batch in self._epoch(global_batch):
                if samples_of(batch) == global_batch:
                    given += 1
                    yield batch
            if not given:
                raise self._too_few(global_batch)

    def _epoch(self, batch_size: int) -> Iterator[Any]:
        """Batches of that size where that can be had, as `split.fit` takes them."""
        dataset, adapter = self._dataset(batch_size)
        with self._told():
            if adapter is not None:
                adapter.on_epoch_begin()
            try:
                for batch in dataset:
                    yield self._arranged(batch)
            finally:
                if adapter is not None:
                    adapter.on_epoch_end()

    def _dataset(self, batch_size: int) -> tuple[tf.data.Dataset, Any]:
        """The dataset, and what of Keras' begins and ends an epoch of it."""
        if isinstance(self._given, tf.data.Dataset):
            self._refuse_other_elements(self._given.element_spec)
            self._refuse_unlike(self._given)
            return regrouped(self._given, self._model, batch_size), None
        if isinstance(self._given, keras.utils.PyDataset):
            adapter = get_data_adapter(x=self._given, shuffle=False)
            dataset = adapter.get_tf_dataset()
            self._refuse_unlike(dataset)
            return regrouped(dataset, self._model, batch_size), adapter
        x, y, weights = keras.utils.unpack_x_y_sample_weight(self._given)
        try:
            adapter = get_data_adapter(x=x, y=y, sample_weight=weights, batch_size=batch_size, shuffle=True)
        except Exception as error:  # noqa: BLE001  (of what Keras raises nothing is promised)
            raise BadInput(f"--data {self._name} gave arrays that Keras can't take: {_line(error)}") from None
        return adapter.get_tf_dataset(), adapter

    def _refuse_other_elements(self, spec: Any) -> None:
        if not isinstance(spec, tuple) or len(spec) not in (2, 3):
            has_one = not isinstance(spec, tuple) or len(spec) == 1
            parts = "one part, where training needs labels too" if has_one else f"{len(spec)} parts, which is too many"
            raise BadInput(
                f"--data {self._name}: its samples have {parts}",
                remedy="give (x, y) or (x, y, sample_weight)",
            )

    def _refuse_unlike(self, data: tf.data.Dataset) -> None:
        """Only batches whose shape is known can be brought to another size."""
        shapes = [spec.shape for spec in tf.nest.flatten(data.element_spec) if getattr(spec, "shape", None) is not None]
        if any(shape.rank is None for shape in shapes):
            raise BadInput(
                f"--data {self._name}: TensorFlow does not know the shape of its samples",
                remedy="say it where a Python function makes them: tf.ensure_shape(x, shape)",
            )
        if not is_batched(data, self._model):
            return
        unlike = next((shape for shape in shapes if None in shape[1:]), None)
        if unlike is not None:
            raise BadInput(
                f"--data {self._name}: its batches have the shape {unlike}, and only the number of samples may be open",
                remedy="bring all samples to one shape: padded_batch with padded_shapes, or ensure_shape where they "
                "have one",
            )

    def _arranged(self, batch: Any) -> Any:
        batch = cleaned(batch)
        self._refuse_other_elements(batch)
        inputs, labels, *weights = batch
        if getattr(self._model, "_compile_loss", None) is None:
            labels = in_order(self._model, labels)
        batch = (inputs, labels, *weights)
        if not self._checked:
            samples_of(batch)
            check_first(f"--data {self._name}", self._model, batch)
            self._checked = True
        return batch

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Says of what happens in the pipeline that it is the data's."""
        try:
            yield
        except GpubalanceError as error:
            error.message = error.message.replace("the data ", f"--data {self._name} ", 1)
            raise
        except Exception as error:  # noqa: BLE001  (the user's own code, in TensorFlow's words)
            raise BadInput(f"--data {self._name} failed while it gave samples: {_line(error)}") from None

    def _too_few(self, global_batch: int) -> BadInput:
        samples = sum(samples_of(batch) for batch in self._epoch(global_batch))
        if not samples:
            return BadInput(f"--data {self._name}: the dataset is empty")
        return BadInput(
            f"--data {self._name} has {samples} samples, fewer than the global batch of {global_batch}",
            remedy=f"use smaller batches, {samples} in sum at most, or give more samples",
        )

    def _pool(self, count: int) -> Any:
        """At least that many samples, or all that there are, or as many as the host should hold."""
        self._reading = self._reading or self._epoch(_AT_A_TIME)
        while _samples(self._held) < count and _bytes(self._held) < _MOST_HELD_BYTES:
            batch = next(self._reading, None)
            if batch is None:
                break
            self._held.append(tf.nest.map_structure(lambda values: values.numpy(), batch))
        if not self._held:
            raise BadInput(f"--data {self._name}: the dataset is empty")
        if len(self._held) > 1:
            try:
                whole = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *self._held)
            except ValueError:
                raise BadInput(
                    f"--data {self._name}: samples of different batches have different shapes",
                    remedy="bring all samples to one shape",
                ) from None
            self._held = [whole]
        return self._held[0]


def _samples(batches: Sequence[Any]) -> int:
    return sum(len(tf.nest.flatten(batch)[0]) for batch in batches)


def _bytes(batches: Sequence[Any]) -> int:
    return sum(int(values.nbytes) for batch in batches for values in tf.nest.flatten(batch))


def _is_arrays(given: Any) -> bool:
    """Whether it is (x, y) or (x, y, sample_weight), each an array or a structure of arrays."""
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        return False
    parts = [part for part in keras.tree.flatten(given) if part is not None]
    return bool(parts) and all(len(getattr(part, "shape", ())) > 0 for part in parts)


def _kind(given: Any) -> str:
    if isinstance(given, tuple):
        return f"a tuple of {len(given)}"
    return "nothing" if given is None else f"a {type(given).__name__}"


def _line(error: BaseException) -> str:
    """What TensorFlow says, without the names of its own nodes and transformations before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r"^(\{\{[^}]*\}\}\s*)+", "", lines[0] if lines else "")
    text = re.sub(r"^Error in user-defined function passed to .* iterator: \S+ ", "", text)
    return clean(text if ":" in text[:60] else f"{type(error).__name__}: {text}", 300)
