"""The samples that a model is measured with: the user's, or random ones that fit it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine import data_faults
from gpubalance.engine.feed import AT_ONCE, Dispatched, Feed
from gpubalance.engine.iterators import Batches
from gpubalance.engine.keras_patches import graph_of, is_keras_own
from gpubalance.engine.models import Target, as_outputs, compile_for, random_targets
from gpubalance.engine.step import built, parity
from gpubalance.engine.user_data import UserData
from gpubalance.errors import BadInput, GpubalanceError
from gpubalance.settings.settings import Settings
from gpubalance.text import clean

_POOL = 512  # samples that the host's pipeline repeats
_HELD_PART = 0.01


class Samples:
    """Random samples for a model: (inputs in its own structure, labels in that of its outputs)."""

    shapes_differ = own_batch_stays = False
    samples = epoch_samples = own_batch = None  # as many as are asked for

    def __init__(self, model: Any, targets: Sequence[Target], *, seed: int) -> None:
        self._model = model
        self._targets = targets
        self._seed = seed
        # In the structure of a call, with tuples for lists, which tf.data would stack.
        if isinstance(model, keras.Sequential):
            self._inputs = model.inputs[0]
        else:
            self._inputs = keras.tree.lists_to_tuples(model.input)
        vocabularies = []
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.Embedding):
                vocabularies.append(int(layer.input_dim))
        self._vocabulary = min(vocabularies, default=2)  # inputs must be below it

    def make(self, count: int, *, salt: int = 0) -> Any:
        """`count` samples as NumPy arrays; the same for the same seed and salt."""
        random = np.random.default_rng([self._seed, salt])

        def values(shape: Sequence[int | None], dtype: tf.DType, below: int) -> Any:
            """Integers below `below`, booleans, or fractions below 1, as the dtype asks."""
            size: Any = (count, *shape)
            if dtype.is_bool:
                numbers = random.integers(0, 2, size)
            elif dtype.is_integer:
                numbers = random.integers(0, below, size)
            else:
                numbers = random.random(size, np.float32)
            return numbers.astype(dtype.as_numpy_dtype)

        def input_values(spec: Any) -> Any:
            return values(spec.shape[1:], tf.as_dtype(spec.dtype), self._vocabulary)

        inputs = tf.nest.map_structure(input_values, self._inputs)
        labels = []
        for target in self._targets:
            # TensorFlow keeps int32 in the host's memory: it would copy it to a GPU in every step.
            dtype = tf.int64 if target.classes else tf.float32
            labels.append(values(target.shape, dtype, target.classes))
        return inputs, as_outputs(self._model, labels)

    longest = make

    def stream(self, global_batch: int) -> Iterator[Any]:
        """The same samples again and again, in batches from a pipeline on the host."""
        endless = tf.data.Dataset.from_tensor_slices(self.make(_POOL)).repeat()
        return Batches(endless.batch(global_batch).prefetch(tf.data.AUTOTUNE))


def held(feed: Feed, source: Any, memory_bytes: Sequence[int]) -> list[Dispatched]:
    """Some global batches of Samples or UserData, dispatched to the devices, where they stay.

    Of a user's own samples up to seven, for several lengths and labels; fewer if they would take
    over a hundredth of a device's memory, as they must not lower the batch limit; but at least as
    many as are there in training, whose memory is measured. The number is odd, as every second step
    is stamped: of an even number the stamped steps would only ever see the same half.
    """
    samples = feed.split.global_batch
    if isinstance(source, Samples):  # one batch is like the other
        batch = as_tensors(source.make(samples))
        return [feed.deal(batch) for _ in range(AT_ONCE)]
    sample_bytes = sum(int(values.nbytes) for values in tf.nest.flatten(source.make(1)))
    count = 7
    for memory, batch in zip(
        memory_bytes, feed.split.batches[feed.own_slice], strict=True
    ):
        maximum = int(_HELD_PART * memory / (batch * sample_bytes))
        while count > max(AT_ONCE, maximum):
            count -= 2
    return feed.deal_all(
        as_tensors(source.make(samples, salt=number)) for number in range(count)
    )


def as_tensors(batch: Any) -> Any:
    """The batch as tensors in the host's memory, as a pipeline gives them."""
    with tf.device("/CPU:0"):
        return tf.nest.map_structure(tf.convert_to_tensor, batch)


Source: TypeAlias = Samples | UserData


def samples_for(
    settings: Settings,
    model: Any,
    strategy: Any,
    device: str,
    *,
    seed: int,
    takes_data: bool = True,
) -> Source:
    """The user's samples, or random ones that suit the model. Raises BadInput if none suit.

    The model is compiled for them if it is not yet.
    """
    try:
        if settings.data is None:
            return _random_samples(model, strategy, device, seed=seed)
        with strategy.scope():
            source = UserData(settings.data, model)
            if not model.compiled:
                _refuse_unknown_outputs(settings, model)
                _, labels, *_ = source.make(1)
                compile_for(model, labels)
    except ValueError as error:
        if settings.data:
            raise BadInput(f"--data {settings.data}: {error}") from None
        remedy = ""
        if takes_data:
            remedy = "give samples of your own: --data FILE.py:FUNCTION"
        raise BadInput(f"--model {settings.model}: {error}", remedy=remedy) from None
    return source


def _refuse_unknown_outputs(settings: Settings, model: Any) -> None:
    """Raises BadInput for a model whose loss can't be told, as it is not a graph of layers."""
    if graph_of(model) is None or not model.built:
        raise BadInput(
            f"--model {settings.model} is not compiled, and its outputs do not show "
            "which loss it needs, because it is not a graph of layers",
            remedy="compile it in that function. If you have a training loop of your "
            "own, move it to the model's train_step: gpubalance guide train",
        )


def build(settings: Settings, model: Any, strategy: Any, batch: Any) -> None:
    """Creates all variables that training needs.

    Raises BadInput, in Keras' words, for samples that do not fit, and without an optimizer, which
    one device needs too.
    """
    if is_keras_own(type(model).train_step) and built.has_no_optimizer(model):
        raise built.no_optimizer(model)
    try:
        built.build(model, strategy, batch, trains=True)
    except Exception as error:
        is_usual = graph_of(model) is not None and is_keras_own(type(model).train_step)
        if settings.data is None or not is_usual or isinstance(error, GpubalanceError):
            raise
        fault = data_faults.of_labels(error)
        fault = fault or data_faults.of_varying_shapes(model, batch)
        if fault is not None:
            message = f"--data {settings.data}: {fault.message}"
            raise BadInput(message, remedy=fault.remedy) from None
        # Keras 3.12 wraps the error of a layer
        inner = str(error).rpartition("Exception encountered:")[-1]
        reason = inner.partition("Arguments received by")[0]
        raise BadInput(
            f"--data {settings.data} does not fit the model and its loss: {clean(reason, 300)}",
            remedy="return x and y in the form that the model's fit takes",
        ) from None


def _random_samples(model: Any, strategy: Any, device: str, *, seed: int) -> Samples:
    if not model.compiled:
        with strategy.scope():
            return Samples(model, compile_for(model), seed=seed)

    def suits(targets: list[Target]) -> bool:
        return parity.can_run(
            model, Samples(model, targets, seed=seed).make(2), strategy, device
        )

    return Samples(model, random_targets(model, suits), seed=seed)
