"""What --data gives to the engine's step, and the sentence for each thing that is wrong with it."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from gpubalance.errors import BadInput
from tests.support.late import keras, layers, tf
from tests.support.told import refused

FILE = """
import math
import numpy as np
import keras
import tensorflow as tf

IMAGES, LABELS = np.arange(120, dtype="float32").reshape(30, 4), np.arange(30) % 2

def sliced(*parts):
    return tf.data.Dataset.from_tensor_slices(parts)

one_by_one = lambda: sliced(IMAGES, LABELS)
in_batches = lambda: one_by_one().batch(7)
arrays = lambda: (IMAGES, LABELS, np.ones(30))

class InParts(keras.utils.PyDataset):
    def __len__(self):
        return 5
    def __getitem__(self, number):
        return IMAGES[number * 6 : number * 6 + 6], LABELS[number * 6 : number * 6 + 6]

in_parts = lambda: InParts(workers=2)
in_parts_by_one = lambda: InParts()
endless = lambda: one_by_one().repeat()
last_left_out = lambda: one_by_one().batch(7, drop_remainder=True)
filtered = lambda: in_batches().prefetch(1).filter(lambda *_: True)
long = lambda: one_by_one().repeat(100).filter(lambda *_: True)
made_by_the_import = in_batches()
with_one_weight = lambda: in_batches().map(lambda x, y: (x, y, 0.5))
named = lambda: tf.data.Dataset.from_tensor_slices(({"image": IMAGES}, LABELS))

def fails():
    raise RuntimeError("no disk")

def quits():
    raise SystemExit("set DATA_DIR")

with_validation = lambda: (one_by_one(), one_by_one())
without_labels = lambda: sliced(IMAGES)
empty = lambda: one_by_one().take(0)
other_shape = lambda: sliced(np.zeros((30, 5), "float32"), LABELS)
text = lambda: sliced(np.full((30, 4), "word"), LABELS)
other_name = lambda: sliced({"picture": IMAGES}, LABELS)
not_a_number = lambda: sliced(np.where(IMAGES == 3, math.nan, IMAGES), LABELS)

def a_late_nan():  # whose batches are shuffled
    images = np.ones((2000, 4), "float32")
    images[40] = math.nan
    return images, np.zeros(2000)

def unlike():
    lengths = tf.data.Dataset.range(1, 9)
    return lengths.map(lambda n: (tf.ones((n,)), 0)).padded_batch(2, ((None,), ()))

not_padded = lambda: tf.data.Dataset.range(1, 9).map(lambda n: (tf.ones((n,)), 0))
classes_from_1 = lambda: sliced(IMAGES, LABELS + 1)

class Broken(keras.utils.PyDataset):
    def __len__(self):
        return 2
    def __getitem__(self, number):
        raise ValueError("bad row 3")

broken_parts = lambda: Broken()

class Endless(keras.utils.PyDataset):
    def __getitem__(self, number):
        return IMAGES, LABELS

parts_without_number = lambda: Endless()
of_unknown_shape = lambda: one_by_one().map(lambda x, y: (tf.numpy_function(lambda x: x, [x], tf.float32), y))
ragged = lambda: tf.data.Dataset.from_tensor_slices((tf.ragged.constant([[1.0], [1.0, 2.0]]), [0, 1]))

def padded():
    lengths = tf.data.Dataset.from_tensor_slices(np.arange(1, 25))
    return lengths.map(lambda n: (tf.fill((n,), tf.cast(n, tf.float32)), n)).padded_batch(4)

doubled = lambda data: data.map(lambda x, y: (2 * x, y), num_parallel_calls=2)
cached = lambda: doubled(one_by_one()).cache().batch(5).prefetch(1)
endlessly_doubled = lambda: doubled(endless()).batch(5)

def one_at_a_time():
    data = one_by_one().map(lambda x, y: (2 * x, y))
    return data.map(lambda x, y: (x + 1, y)).batch(5)
"""
GOOD = ["one_by_one", "in_batches", "made_by_the_import", "arrays", "with_one_weight"]
GOOD += ["in_parts", "endless", "named"]
WRONG = {
    "fails": "fails failed:\n  File ",
    "quits": "failed:\n  File (.|\n)*SystemExit: set DATA_DIR",
    "with_validation": "of type tuple, not a dataset\n  → return one dataset, the training data",
    "without_labels": "a sample must have two or three parts, not 1",
    "empty": "the dataset is empty",
    "text": "has text among its inputs",
    "not_a_number": "the first batch has NaN among its inputs",
    "a_late_nan": "the first batch has NaN among its inputs",
    "not_padded": "failed while it produced samples: .* different shapes",
    "classes_from_1": "has labels from 1 to 2, but the model's output .* has 2 classes: 0 to 1",
    "broken_parts": "failed while it produced samples: ValueError: bad row 3",
    "parts_without_number": "failed while it produced samples: .*num_batches",
    "of_unknown_shape": "TensorFlow does not know the shape of its samples",
    "ragged": r"--data .*: x is a RaggedTensor .*(.|\n)*x\.to_tensor\(\): for a dataset in a map\(\)",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that makes the user's data from a function's name."""
    from gpubalance.engine.user_data import UserData

    path = tmp_path_factory.mktemp("user") / "samples.py"
    path.write_text(FILE)
    inputs = keras.Input((4,), name="image")
    model = keras.Sequential([inputs, layers.Dense(2, "softmax")])
    return lambda name, model=model: UserData(f"{path}:{name}", model)


@pytest.mark.parametrize("name", GOOD)
def test_each_form_comes_in_batches_of_the_split_on_and_on(
    data: Any, name: str
) -> None:
    found = list(islice(data(name).stream(12), 5))
    for inputs, labels, *_ in found:
        inputs = inputs["image"] if isinstance(inputs, dict) else inputs
        assert (inputs.shape, labels.shape[0]) == ((12, 4), 12)
    assert len(found[0]) == (3 if name in ("arrays", "with_one_weight") else 2)


OWN = {"in_batches": 7, "cached": 5, "in_parts": 6}
OWN_SIZES = OWN | dict.fromkeys(("one_by_one", "arrays", "endless"))


@pytest.mark.parametrize(("name", "size"), OWN_SIZES.items())
def test_the_users_own_batch_is_known(data: Any, name: str, size: int | None) -> None:
    assert data(name).own_batch == size
    assert not data(name).own_batch_stays


OF_THIRTY = ("arrays", "in_parts", "one_by_one", "in_batches", "filtered")
EPOCHS = dict.fromkeys(OF_THIRTY, 30) | {"last_left_out": 28}
EPOCH_SIZES = EPOCHS | dict.fromkeys(("long", "endless"))


@pytest.mark.parametrize(("name", "samples"), EPOCH_SIZES.items())
def test_an_epochs_size_is_known(data: Any, name: str, samples: int | None) -> None:
    """By TensorFlow's and Keras' own counts, else by reading up to 2048 samples."""
    assert data(name).epoch_samples == samples


def test_held_samples_are_the_users_and_as_many_as_are_asked_for(data: Any) -> None:
    inputs, labels = data("in_batches").make(70)
    assert (inputs.shape, labels.shape) == ((70, 4), (70,))
    assert (inputs[:30, 0] == range(0, 120, 4)).all()
    assert (inputs[30:60] == inputs[:30]).all()
    after_a_stream = data("in_batches")
    next(after_a_stream.stream(6))  # which ends the pipeline that was read so far
    assert (after_a_stream.make(30)[0] == inputs[:30]).all()
    for name in GOOD:  # how many there are is known when all are read
        user_data = data(name)
        user_data.make(31)
        assert user_data.samples == (None if name == "endless" else 30)
    with refused("has 30 samples, fewer than the global batch of 31"):
        next(data("in_batches").stream(31))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_in_a_sentence(data: Any, name: str) -> None:
    with pytest.raises(BadInput, match=WRONG[name]):
        data(name).make(1)


def test_padded_batches_stay_as_they_are_and_others_are_made_of_them(data: Any) -> None:
    from gpubalance.engine.built_model import count_step

    body = [layers.Reshape((-1, 1)), layers.GlobalAveragePooling1D(), layers.Dense(1)]
    model = keras.Sequential([keras.Input((None,)), *body])
    data = data("padded", model)
    lengths = [batch[0].shape[1] for batch in islice(data.stream(4), 7)]
    assert lengths == [4, 8, 12, 16, 20, 24, 4]
    assert data.shapes_differ
    assert data.joined_from(4) is None
    shapes = [batch[0].shape for batch in islice(data.stream(12), 2)]
    assert shapes == [(12, 12), (12, 24)]
    assert data.joined_from(12) == 4
    assert data.own_batch_stays
    assert [data.longest(size)[0].shape for size in (2, 6)] == [(2, 24), (6, 24)]
    assert {data.make(3, salt=number)[0].shape[1] for number in range(7)} >= {4, 24}
    model.compile(loss="mse")
    assert count_step(model, [data.make(1, salt=number) for number in range(7)])
    (values, _) = data.make(5)
    # The samples are padded with zeros, and cut nowhere.
    assert (values.sum(axis=1) == [number * number for number in range(1, 6)]).all()


def test_samples_that_do_not_fit_the_model_are_told_in_keras_words(data: Any) -> None:
    """Samples that do not fit the model or its loss are told in Keras' words."""
    from gpubalance.engine.data import as_tensors, build
    from gpubalance.settings.settings import Settings

    def built(function: str, loss: str) -> None:
        inputs = keras.Input((4,), name="image")
        model = keras.Sequential([inputs, layers.Dense(3, "softmax")])
        model.compile(loss=loss)
        settings = Settings(model="mine.py:net", data=f"samples.py:{function}")
        batch = as_tensors(data(function, model).make(16))
        build(settings, model, tf.distribute.get_strategy(), batch)

    sparse = "sparse_categorical_crossentropy"
    shape = r"to have value 4, but received"
    says = {"other_shape": rf"{shape} input with shape \(16, 5\)", "unlike": shape}
    says["other_name"] = "Expected: image Received: inputs={'picture'"
    for function, told in says.items():
        with refused(f"{function} does not fit the model and its loss: .*{told}"):
            built(function, sparse)
    with refused(r"one_by_one: .* takes one-hot labels"):
        built("one_by_one", "categorical_crossentropy")
    built("one_by_one", sparse)


def test_labels_compile_a_model_by_its_outputs_or_are_told() -> None:
    import numpy as np

    from gpubalance.engine.models import compile_for

    inputs = keras.Input((4,))
    one = layers.Dense(3, "softmax", name="kind")(inputs)
    two = layers.Dense(1, name="price")(inputs)
    labels = {"price": np.zeros((5, 1), "float32"), "kind": np.zeros(5, "int64")}
    for outputs in ([one, two], {"kind": one, "price": two}):
        model = keras.Model(inputs, outputs)
        compile_for(model, labels)
        model.run_eagerly = True
        assert model.evaluate(np.zeros((5, 4), "float32"), labels, verbose=0)
    with refused("for kind, but the model's outputs are kind, price", ValueError):
        compile_for(model, {"kind": labels["kind"]})
    with refused(r"labels of shape \(4,\) per sample for the output", ValueError):
        compile_for(keras.Model(inputs, one), (np.zeros((5, 4)),))
    with refused("labels for 2 outputs, but the model has 1", ValueError):
        compile_for(keras.Model(inputs, one), (np.zeros(5), np.zeros(5)))


def test_the_usual_remedies_are_told_at_the_users_own_lines(data: Any) -> None:
    def told(name: str) -> list[tuple[str, str]]:
        remedies = data(name).usual_remedies()
        return [(one.where, one.what.split("(")[0]) for one in remedies]

    more = "workers= more than one, if __getitem__ may run in several threads"
    assert told("in_parts_by_one") == [("InParts", more)]
    line = 2 + FILE.splitlines().index("def one_at_a_time():")
    both = f"samples.py, lines {line} and {line + 1}"
    last = f"samples.py, line {line + 1}"
    assert told("one_at_a_time") == [(both, "map"), (last, "cache")]
    assert told("cached") == told("endlessly_doubled") == []
