"""No timing that counts has a step that was traced, whatever shapes batches have."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import DeviceProfile, JointProfile
from gpubalance.settings.settings import Settings
from tests.jobs.probes import devices_of
from tests.support.cases import full

# Batches of 4 texts, each batch padded to its own longest one. The model's layer counts how often
# it is called, which TensorFlow does only to trace it.
OWN = """
import keras
import numpy as np
import tensorflow as tf

LENGTHS = {lengths}
calls = []

def texts():
    for length in LENGTHS:
        yield np.arange(1, length + 1) % 9, np.float32(length % 2)

def batches():
    for start in range(0, len(LENGTHS), 4):
        part = list(texts())[start : start + 4]
        longest = max(len(text) for text, _ in part)
        x = np.array([np.pad(text, (0, longest - len(text))) for text, _ in part])
        yield x, np.array([label for _, label in part])

like = tf.TensorSpec((None,), tf.int64), tf.TensorSpec((), tf.float32)

def padded():
    return tf.data.Dataset.from_generator(texts, output_signature=like).padded_batch(4)

def ragged():
    def dense(x, y):
        return x.to_tensor(), y
    data = tf.data.Dataset.from_generator(texts, output_signature=like)
    return data.ragged_batch(4).map(dense)

def generator():
    like = tf.TensorSpec((None, None), tf.int64), tf.TensorSpec((None,), tf.float32)
    return tf.data.Dataset.from_generator(batches, output_signature=like)

class Parts(keras.utils.PyDataset):
    def __len__(self):
        return len(LENGTHS) // 4

    def __getitem__(self, number):
        return list(batches())[number]

def parts():
    return Parts()

class Counted(keras.layers.Layer):
    def call(self, x):
        calls.append(x.shape)
        return x

def net():
    model = keras.Sequential(
        [keras.Input((None,), dtype="int64"), keras.layers.Embedding(9, 2), Counted(),
         keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    return model
"""
PROFILE = DeviceProfile(name="paced", alpha_s=0.002, beta_s=0.0)


def measured(
    path: Path, form: str, sizes: Sequence[int], *, pipeline: bool
) -> Iterator[tuple[Timing, bool]]:
    """Timings at each size one after the other, and whether a step was traced since the last."""
    from gpubalance.engine.session import Session
    from gpubalance.engine.user_functions import user_function

    settings = Settings(model=f"{path}:net", data=f"{path}:{form}")
    session = Session(devices_of(PROFILE), settings, JointProfile(), seed=0)
    calls = user_function(settings.model, "--model").__globals__["calls"]
    for size in sizes:
        how: Any = {"seconds": 0, "at_least": 2, "pipeline": pipeline}
        split = BatchSplit((size,))
        timings = session.measure(split, steps_per_timing=1, stamped=False, **how)
        count = len(calls)
        for timing in timings:
            yield timing, len(calls) > count
            count = len(calls)


FORMS: list[Any] = [("padded", True), ("parts", False), full("generator", False)]
FORMS += [full(form, True) for form in ("ragged", "parts")]


@pytest.mark.parametrize(("form", "pipeline"), FORMS)
def test_no_counted_timing_traces(form: str, pipeline: bool, tmp_path: Path) -> None:
    """The first batch is as long as the longest, and most are.

    Of a PyDataset Keras only sees that lengths differ if those of the first batches do.
    """
    drawn = random.Random(form)
    lengths = [12, 3, 4, 5, 6, 3, 4, 5]
    lengths += [drawn.choice((*range(3, 12), *[12] * 12)) for _ in range(40)]
    sizes = drawn.sample([2, 4, 8, 16], 3)
    path = tmp_path / "own.py"
    path.write_text(OWN.format(lengths=lengths))
    found = list(measured(path, form, sizes, pipeline=pipeline))
    counted = [timing for timing, _ in found if timing.counts]
    assert len(counted) == 2 * len(sizes)
    assert not any(timing.new_shapes for timing in counted)
    first_of_all = found.pop(0)  # the step is traced before a timing begins
    assert first_of_all[1]
    assert not [timing for timing, is_traced in found if is_traced and timing.counts]


@pytest.mark.full
def test_shapes_that_never_end_count_at_last_and_are_told(tmp_path: Path) -> None:
    """Each batch of one text has another length."""
    path = tmp_path / "own.py"
    path.write_text(OWN.format(lengths=list(range(3, 1003))))
    found = list(measured(path, "padded", [1], pipeline=True))
    counted = [timing for timing, _ in found if timing.counts]
    assert len(counted) == 2
    assert all(timing.new_shapes for timing in counted)
