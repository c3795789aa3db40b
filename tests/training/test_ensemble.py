"""In a `gpubalance.Ensemble`, several trained models predict at the same time.

Each of them is on one device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpubalance
from gpubalance.errors import NothingFits
from tests.cli.program import QUICK_PAIR
from tests.support.late import keras, layers, tf
from tests.support.told import refused
from tests.training.models import compiled

pytestmark = pytest.mark.xdist_group("ensemble")

SMALL = """
[[device]]
name = "small"
alpha_s = 0.001
beta_s = 0.0
memory = "1 MiB"
"""


@pytest.fixture(scope="module")
def models() -> list[Any]:
    """Three models, of which the last is compiled."""
    keras.utils.set_random_seed(1)
    convolution = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten()]
    made = []
    for body in (convolution, [layers.Flatten()], [layers.Flatten()]):
        whole = [keras.Input((32, 32, 3)), *body, layers.Dense(10, "softmax")]
        made.append(keras.Sequential(whole))
    return [*made[:2], compiled(made[2])]


@pytest.fixture(scope="module")
def samples() -> Any:
    return np.random.default_rng(0).normal(size=(70, 32, 32, 3)).astype("float32")


def dense(units: int) -> Any:
    return keras.Sequential([layers.Input((64,)), layers.Dense(units)])


def test_a_gpu_lends_what_is_free_and_that_is_no_less_than_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits, taken = (8, 3, None, 8), {"GPU:0": 5, "GPU:1": 5, "GPU:2": 5, "CPU:0": 5}
    memory = "gpubalance.engine.memory.memory"
    monkeypatch.setattr(f"{memory}_limits_bytes", lambda *_: limits)
    monkeypatch.setattr(f"{memory}_bytes", lambda name, _: taken[name])
    ensemble = object.__new__(gpubalance.Ensemble)
    monkeypatch.setattr(ensemble, "devices", (), raising=False)
    monkeypatch.setattr(ensemble, "_names", tuple(taken), raising=False)
    assert ensemble._limits() == [3, 0, None, 8]


def test_predictions_are_each_model_s_own(models: list[Any], samples: Any) -> None:
    own = [model.predict(samples, verbose=0) for model in models]
    ensemble = gpubalance.Ensemble(models, gpus=[0, 1], simulate=QUICK_PAIR)
    for found, expected in zip(ensemble.predict(samples), own, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert sorted(set(ensemble.placement)) == [0, 1]
    labelled = tf.data.Dataset.from_tensor_slices((samples, np.zeros(70))).batch(16)
    mean = ensemble.predict(labelled, mean=True)
    np.testing.assert_allclose(mean, np.mean(own, axis=0), atol=1e-6)
    there = [[one.value.device[-5:] for one in of.variables] for of in ensemble._there]
    devices = list(map(set, there))
    assert devices == [{f"CPU:{device}"} for device in ensemble.placement]
    assert models[-1].optimizer is not None


def test_models_of_a_split_are_not_said_to_be_predicted_by_each_device(
    recwarn: Any,
) -> None:
    with gpubalance.Split([0, 1], batches=[6, 2], simulate=QUICK_PAIR).scope():
        made = [dense(3), dense(3)]
    ensemble = gpubalance.Ensemble(made, gpus=[0, 1], simulate=QUICK_PAIR)
    ensemble.predict(np.ones((20, 64), "float32"))
    assert not [one for one in recwarn if "predict_on_batch" in str(one.message)]


def convolutions(stride: int = 1, dtype: str = "float32") -> Any:
    inputs = keras.Input((8, 8, 3))
    first = layers.Conv2D(4, 3, strides=stride, padding="same", dtype=dtype)(inputs)
    second = layers.Conv2D(4, 3, padding="same")(first)
    return keras.Model(inputs, second)


def test_models_are_measured_once_only_if_their_layers_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Own(keras.Model):
        """Its config has no layers."""

        def __init__(self) -> None:
            super().__init__()
            self.body = convolutions(2)

        def call(self, inputs: Any) -> Any:
            return self.body(inputs)

    class WithoutConfig(Own):
        def get_config(self) -> Any:
            raise KeyError

    measured = []
    own = gpubalance.Ensemble._measured

    def spy(ensemble: Any, number: int, *arguments: Any) -> Any:
        measured.append(number)
        return own(ensemble, number, *arguments)

    monkeypatch.setattr(gpubalance.Ensemble, "_measured", spy)
    made = [convolutions(), convolutions(2), convolutions(dtype="float64"), Own()]
    made += [convolutions(2), Own(), WithoutConfig(), WithoutConfig()]
    # Seeds differ in a deep ensemble, and Keras counts the names of operations.
    for seed in range(2):
        given = keras.Input((8, 8, 3))
        drop = keras.layers.Dropout(0.5, seed=seed)
        made.append(keras.Model(given, drop(given) + 1))
    ensemble = gpubalance.Ensemble(made, simulate=1)
    ensemble.predict(np.ones((4, 8, 8, 3), "float32"))
    assert measured == [0, 1, 2, 3, 6, 7, 8]


def test_files_are_loaded_where_they_predict(tmp_path: Path) -> None:
    made = [dense(3), dense(3)]
    x = np.ones((5, 64), "float32")
    files = [str(tmp_path / "0.keras"), tmp_path / "1.keras"]
    for model, file in zip(made, files, strict=True):
        model.save(file)
    found_by_each = gpubalance.Ensemble(files, simulate=2).predict(x, batch_size=2)
    for found, model in zip(found_by_each, made, strict=True):
        np.testing.assert_allclose(found, model.predict(x, verbose=0), atol=1e-6)


LARGE = r"\(number 1\) fits on no device: it needs 24.8 MiB of 1.00 MiB on GPU:0"
LACKS = [
    (1, (10, 100_000), LARGE),
    (1, (3000, 3000), "the models do not fit on the devices together"),
    (5, 21 * (1000,), "stopped after 200,000 steps, so one may exist"),
]


@pytest.mark.parametrize(("devices", "sizes", "says"), LACKS)
def test_what_does_not_fit_is_named_before_anything_predicts(
    devices: int, sizes: tuple[int, ...], says: str, tmp_path: Path
) -> None:
    profile = tmp_path / "small.toml"
    profile.write_text(devices * SMALL)
    ensemble = gpubalance.Ensemble([dense(size) for size in sizes], simulate=profile)
    with refused(says, NothingFits):
        ensemble.predict(np.ones((5, 64), "float32"))
    assert not ensemble.placement


def test_a_model_that_was_trained_since_predicts_with_its_new_weights() -> None:
    x = np.ones((5, 64), "float32")
    models = [dense(3), dense(3)]
    ensemble = gpubalance.Ensemble(models, simulate=2)
    ensemble.predict(x)
    for model in models:
        model.set_weights([weight + 1 for weight in model.get_weights()])
    for found, model in zip(ensemble.predict(x), models, strict=True):
        np.testing.assert_allclose(found, model.predict(x, verbose=0), atol=1e-5)


def test_a_larger_batch_is_placed_anew(tmp_path: Path) -> None:
    profile = tmp_path / "small.toml"
    profile.write_text(SMALL + 'memory_per_sample = "8 KiB"\n')
    model = dense(3)
    x = np.ones((200, 64), "float32")
    ensemble = gpubalance.Ensemble([model], simulate=profile)
    ensemble.predict(x[:1])
    with refused(r"it needs 1.56 MiB of 1.00 MiB", NothingFits):
        ensemble.predict(x, batch_size=200)
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(ensemble.predict(x)[0], expected, atol=1e-6)


def test_what_is_no_model_or_no_data_is_refused(tmp_path: Path) -> None:
    with refused("takes Keras models and files, and got a value of type int among"):
        gpubalance.Ensemble([1], simulate=1)
    without_brackets: Any
    for without_brackets in (dense(3), "model.keras", Path("model.keras")):
        with refused("an ensemble takes a list of models or files, and got a value of"):
            gpubalance.Ensemble(without_brackets, simulate=1)
    with refused("an ensemble needs at least one model"):
        gpubalance.Ensemble([], simulate=1)
    with refused(r"missing.keras can't be loaded"):
        gpubalance.Ensemble([tmp_path / "missing.keras"], simulate=1)
    with refused("a generator would be exhausted after the first model"):
        gpubalance.Ensemble([dense(1)], simulate=1).predict(iter([np.ones((1, 64))]))
    unlike = gpubalance.Ensemble([dense(3), dense(1)], simulate=2)
    with refused("the models' outputs differ in shape"):
        unlike.predict(np.ones((5, 64), "float32"), mean=True)
    empty = np.ones((0, 64), "float32")
    for data in (empty, tf.data.Dataset.from_tensor_slices(empty).batch(8)):
        with refused("the data has no samples"):
            unlike.predict(data)
