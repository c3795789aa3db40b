"""What a new user gets wrong in a script: each is named, with what to do instead."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

from gpubalance.errors import BadInput
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import JointProfile
from gpubalance.training.split import Split
from tests.jobs.probes import QUICK, devices_of
from tests.support.cases import cases
from tests.support.late import keras, layers, optimizers, tf
from tests.support.told import refused, warnings_of
from tests.training.cases import in_split, simulated
from tests.training.models import classifier, compiled
from tests.training.samples import numbers, one_hot
from tests.training.told import checked

X, Y = numbers(200)
NAMES = np.array(["cat", "cow", "dog"])[Y]


def told(call: Any) -> list[str]:
    """The warnings of a call, of which ours name a line here."""
    return warnings_of(call, __file__)


def test_a_split_expects_its_model_where_keras_is_there_to_make_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected: list[Any] = []
    monkeypatch.setattr("gpubalance.training.scope.expect", expected.append)
    devices = devices_of(QUICK, QUICK)
    both, one = BatchSplit((4, 4)), BatchSplit((4, 0))
    assert expected == [Split.of(devices, both, JointProfile())]
    Split.of(devices, one, JointProfile())
    monkeypatch.delitem(sys.modules, "keras")
    Split.of(devices, both, JointProfile())
    assert len(expected) == 1


def gradients(model: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = keras.losses.sparse_categorical_crossentropy(Y, model(X, training=True))
    return tape.gradient(loss, model.trainable_variables)


def test_a_training_loop_in_the_scope_is_told_where_it_belongs() -> None:
    split = simulated((70, 30))
    for take in (gradients, tf.function(gradients, autograph=False)):
        with refused("a training loop of your own") as caught, split.scope():
            take(classifier()())
        text = str(caught.value)
        assert "in gradients\n" in text  # the user's own lines
        assert "→ move the work on a batch into the model's train_step" in text
        assert caught.value.__suppress_context__
    with pytest.raises(ValueError, match="other"), split.scope():
        raise ValueError("other")


def test_a_training_loop_beside_the_scope_is_told_that_no_split_trains_it() -> None:
    split, model = in_split()
    with split.scope():
        model.build((None, 6))
        built, unbuilt = optimizers.SGD(0.1), optimizers.Adam()
        built.build(model.trainable_variables)
    variables = model.trainable_variables
    (text,) = told(lambda: built.apply(gradients(model), variables))
    own = "a training loop of your own applies gradients outside fit: one device"
    assert text.startswith(own)
    assert "train_step" in text
    assert told(lambda: built.apply(gradients(model), variables)) == []
    with pytest.raises(BadInput, match=r"has no variables yet(.|\n)*optimizer\.build"):
        unbuilt.apply(gradients(model), variables)
    assert told(lambda: split.fit(model, X, Y, verbose=0)) == []
    alone = classifier()()
    assert told(lambda: alone.train_on_batch(X, Y)) == []


def test_that_every_device_gets_a_whole_batch_is_told_once() -> None:
    model = in_split()[1]
    for name in ("train_on_batch", "test_on_batch", "predict_on_batch"):
        data = (X,) if name == "predict_on_batch" else (X, Y)

        def call(name: str = name, data: Any = data) -> None:
            getattr(model, name)(*data)

        (text,) = told(call)
        assert f"{name} gives every device the whole" in text
        assert told(call) == []


def test_of_several_processes_the_first_one_warns_of_mistakes() -> None:
    split, model = in_split()
    with split.scope():
        model.build((None, 6))
        sgd = optimizers.SGD(0.1)
        sgd.build(model.trainable_variables)
    waiting, alone = simulated((70, 30)), classifier()()
    split._cluster = Cluster(addresses=("a:1", "b:2"), rank=1)
    waiting._cluster, split.precision = split._cluster, "float32"

    def mistakes() -> None:
        model.train_on_batch(X, Y)
        sgd.apply(gradients(model), model.trainable_variables)
        alone.fit(X, Y, verbose=0)
        keras.config.set_dtype_policy("mixed_float16")
        split.scope()

    assert told(mistakes) == []
    split._cluster = waiting._cluster = None
    assert len(told(mistakes)) == 4


def dense(loss: str) -> Any:
    body = [keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(3, "softmax")]
    return in_split(compiled, body, loss)


def test_nan_among_the_samples_is_told_as_a_loss_that_is_not_finite() -> None:
    x, y = one_hot(200)
    body = [keras.Input((6,)), layers.Dense(3, "softmax")]
    for given, among in (((x * np.nan, y), "inputs"), ((x, y * np.nan), "labels")):
        found = checked(compiled(body, "mse"), *given)
        assert found.minimum == 1
        (text,) = found.warned
        assert "is NaN or infinite for the samples tried" in text
        assert text.endswith(f"their {among} contain NaN or infinity")


def test_a_later_nan_is_told_when_the_training_ends() -> None:
    x, y = one_hot(200)
    x[190] = np.nan
    split, model = dense("mse")
    with split.scope():
        other = compiled(keras.models.clone_model(model), "mse")
        other.name = "other"
    for one in (model, other):
        texts = told(lambda one=one: split.fit(one, x, y, shuffle=False, verbose=0))
        start = f"the loss of the model {one.name} is NaN or infinite: look for NaN "
        assert [text for text in texts if text.startswith(start)]
        assert not [text for text in texts if "mean over samples" in text]


def test_nan_that_the_check_has_found_is_not_told_again_at_the_end() -> None:
    x, y = one_hot(200)
    split, model = dense("mae")
    (text,) = told(lambda: split.fit(model, x * np.nan, y, verbose=0))
    assert text.startswith(f"the loss of the model {model.name}, or its gradient, is ")


def test_after_nan_a_step_is_tried_again_only_with_finite_weights() -> None:
    """Each try takes as long as a first step, half a minute for an LSTM."""
    traced = []

    class Traced(layers.Layer):
        def call(self, x: Any) -> Any:
            traced.append(x.shape)
            return x

    x, y = one_hot(100)
    body = [keras.Input((6,)), Traced(), layers.Dense(3)]
    split, model = in_split(compiled, body, "mse", batches=(70, 30))
    weights = model.get_weights()
    assert told(lambda: split.fit(model, x * np.nan, y, verbose=0))
    assert not np.isfinite(model.get_weights()[0]).any()
    tried = len(traced)
    split.fit(model, x, y, epochs=3, verbose=0)
    assert len(traced) == tried
    model.set_weights(weights)
    split.fit(model, x, y, verbose=0)
    assert len(traced) > tried
    assert np.isfinite(model.get_weights()[0]).all()


def test_keras_says_the_same_of_shuffling_a_dataset_without_a_split() -> None:
    _, model = in_split()
    alone = classifier()()
    (data,) = batched(X, Y)
    for options in ({}, {"shuffle": True}, {"shuffle": False}):
        fits = [partial(of.fit, data, verbose=0, **options) for of in (alone, model)]
        assert warnings_of(fits[0]) == warnings_of(fits[1])


def batched(*arrays: Any) -> tuple[Any]:
    return (tf.data.Dataset.from_tensor_slices(arrays).batch(100),)


class Series:
    """An array as pandas has it: without `flat`."""

    def __init__(self, values: Any) -> None:
        self._values = np.array(values, object)
        self.dtype, self.shape = self._values.dtype, self._values.shape
        self.size = self._values.size

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self._values


def test_labels_and_inputs_that_are_text_are_named() -> None:
    split, model = in_split()
    labels: list[Any] = [
        (X, kind) for kind in (NAMES, NAMES.astype(object), list(NAMES))
    ]
    labels += [(X, Series(NAMES)), batched(X, NAMES)]
    for given in labels:
        with refused(r"the labels \(y\) are text\n.*number them"):
            split.fit(model, *given, verbose=0)
    with refused(r"the labels \(y\) are text\n.*number them"):
        split.fit(model, X, Y, validation_data=(X, NAMES), verbose=0)
    with refused(r"the inputs \(x\) are text, but the model"):
        split.fit(model, NAMES, Y, verbose=0)


def test_a_model_that_begins_with_text_trains() -> None:
    """Check says so when it refuses to measure it."""
    known = {"vocabulary": ["cat", "cow", "dog"], "output_sequence_length": 1}
    vectorised = layers.TextVectorization(**known)
    body = [keras.Input((), dtype="string"), vectorised, layers.Embedding(5, 3)]
    body += [layers.Flatten(), layers.Dense(3, "softmax")]
    split, model = in_split(compiled, body, "sparse_categorical_crossentropy")
    texts = tf.data.Dataset.from_tensor_slices((NAMES, Y)).batch(100)
    history = split.fit(model, texts, epochs=2, verbose=0).history["loss"]
    assert history[1] < history[0]


def test_arrays_of_unlike_length_are_named() -> None:
    split, model = in_split()
    with pytest.raises(BadInput, match="x has 200 samples, and y has 150"):
        split.fit(model, X, Y[:150], verbose=0)
    with pytest.raises(BadInput, match="x has 200 samples, and sample_weight has 20"):
        split.fit(model, X, Y, sample_weight=np.ones(20), verbose=0)
    unlike = (X[:90], Y)
    with pytest.raises(BadInput, match="x of validation_data has 90 samples"):
        split.fit(model, X, Y, validation_data=unlike, verbose=0)


def test_inputs_of_another_shape_are_named_in_keras_words() -> None:
    """A step that was traced for any shape leaves them to TensorFlow's kernels."""
    _, model = dense("mse")
    x, y = one_hot(200)
    narrow = x[:, :2]
    says = r" does not fit the model sequential\w*: expected shape=\(None, 6\), found shape="

    def refused_as(name: str, call: Any, **given: Any) -> None:
        with refused(rf"^{name}{says}\(100, 2\)\n  → give {name} the shape"):
            call(**given, verbose=0)

    def validated_as(name: str) -> None:
        refused_as(name, model.fit, x=x, y=y, validation_data=(narrow, y))

    for _ in range(2):  # while a step is tried, and later
        assert told(lambda: validated_as("x of validation_data")) == []
        model.fit(x, y, validation_data=(x, y), verbose=0)
    refused_as("x", model.fit, x=narrow, y=y)
    refused_as("x", model.evaluate, x=narrow, y=y)
    model.predict(x, verbose=0)
    refused_as("x", model.predict, x=narrow, batch_size=100)


@cases("of", lambda *arrays: arrays, batched)
def test_labels_of_the_other_loss(of: Any) -> None:
    one, other = "sparse_categorical_crossentropy", "categorical_crossentropy"
    shapes = r"\(batch, 3\): they are one-hot", r"\(batch\): they are class"
    kinds = (one, one_hot(200)[1], other, shapes[0]), (other, Y, one, shapes[1])
    for loss, labels, use, shape in kinds:
        split, model = dense(loss)
        of_shape = rf"the labels \(y\) have the shape {shape}"
        with refused(rf"{of_shape}(.|\n)*\n.*→ use {use}, or"):
            split.fit(model, *of(X, labels), verbose=0)


def recommender() -> Any:
    """What rates a user's items, of which each has another number."""
    user = keras.Input((), dtype="int64", name="user")
    items = keras.Input((None,), dtype="int64", name="items")
    mean = layers.GlobalAveragePooling1D()(layers.Embedding(9, 4)(items))
    joined = layers.Concatenate()([layers.Embedding(5, 4)(user), mean])
    model = keras.Model({"user": user, "items": items}, layers.Dense(1)(joined))
    return compiled(model, "mse", "adam")


def padded(x: Any, y: Any) -> tuple[Any, Any]:
    """As the remedy says."""
    return {**x, "items": x["items"].to_tensor()}, y


def test_a_ragged_input_is_named_with_what_makes_it_train() -> None:
    split, model = in_split(recommender)
    items = tf.ragged.constant([[1], [2, 3], [4, 5, 6], [7]] * 50, dtype="int64")
    arrays = {"user": tf.constant(Y % 5, "int64"), "items": items}, Y.astype("float32")
    (batches,) = batched(*arrays)
    remedy = r'x\["items"\]\.to_tensor\(\): for a dataset in a map\(\)'
    for data in (arrays, (batches,), (batches.unbatch(),)):
        with refused(rf'x\["items"\] is a RaggedTensor(.|\n)*{remedy}'):
            split.fit(model, *data, verbose=0)
    for dense_again in (padded(*arrays), (batches.map(padded),)):
        history = split.fit(model, *dense_again, epochs=2, verbose=0).history["loss"]
        assert history[1] < history[0]


def test_an_optional_input_that_is_none_is_told_as_that() -> None:
    def rating() -> Any:
        class Rating(layers.Dense):
            def call(self, x: Any, more: Any = None) -> Any:
                return super().call(x if more is None else x + more)

        inputs = keras.Input((6,)), keras.Input((6,), optional=True)
        return compiled(keras.Model(inputs, Rating(3, "softmax")(*inputs)))

    split, model = in_split(rating)
    with refused(r"x\[1\] is None(.|\n)*→ build the model without this optional input"):
        split.fit(model, (X, None), Y, verbose=0)
    split.fit(model, (X, X), Y, verbose=0)


def test_a_sparse_input_is_named_with_what_makes_it_dense() -> None:
    split, model = in_split()
    (batches,) = batched(X, Y)
    sparse = batches.map(lambda x, y: (tf.sparse.from_dense(x), y))
    with pytest.raises(BadInput, match=r"x is a SparseTensor") as caught:
        split.fit(model, sparse, verbose=0)
    caught.match(r"tf\.sparse\.to_dense\(x\), in the dataset's map")
    dense_again = sparse.map(lambda x, y: (tf.sparse.to_dense(x), y))
    split.fit(model, dense_again, verbose=0)
