"""The models that --model names, and what is said of one that can't be trained."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gpubalance.errors import BadInput
from gpubalance.settings.choices import Precision
from gpubalance.settings.settings import Settings
from gpubalance.system.files import read_toml
from tests.support.cases import cases
from tests.support.known import known
from tests.support.late import keras, layers, tf
from tests.support.told import refused

FILE = """
from __future__ import annotations
from dataclasses import dataclass
import keras
from beside_it import units
@dataclass
class Sizes:
    last: int = units
good = lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(Sizes().last, activation="softmax")])
unknown_shape = lambda: keras.Sequential([keras.Input((None, None, 3)), keras.layers.Conv2D(2, 3)])
fixed_batch = lambda: keras.Sequential([keras.Input((4,), batch_size=7), keras.layers.Dense(2)])
stateful = lambda: keras.Sequential(
    [keras.Input((3, 2), batch_size=7), keras.layers.LSTM(4, stateful=True, name="memory")]
)
no_input = lambda: keras.Sequential([keras.layers.Dense(2)])
no_weights = lambda: keras.Sequential([keras.Input((4,)), keras.layers.Flatten()])
text = lambda: keras.Sequential([keras.Input((1,), dtype="string"), keras.layers.TextVectorization(vocabulary=["a"])])
a_string = lambda: "a model"
a_model = no_weights()
of_a_size = lambda size: no_weights()

def breaks():
    raise RuntimeError("of the user's own")
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Another test's file may have had this name.
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    (tmp_path / "beside_it.py").write_text("units = 2\n")
    return path


def test_a_file_whose_import_fails_is_no_module(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpubalance.engine.user_functions import user_function

    file.write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        user_function(f"{file}:good", "--model")
    assert "mine" not in sys.modules
    other = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", other)
    with pytest.raises(ZeroDivisionError):
        user_function(f"{file}:good", "--model")
    assert sys.modules["mine"] is other


@pytest.fixture(autouse=True)
def _precision() -> None:
    """A worker's process computes in TF32; another test's split may have changed this one's."""
    tf.config.experimental.enable_tensor_float_32_execution(True)


def table(name: str) -> list[tuple[str, str]]:
    """The rows of a file here."""
    return list(read_toml(Path(__file__).with_name(name), "table").items())


def build(name: str, precision: Precision = "tf32") -> Any:
    from gpubalance.engine.models import make_model

    return make_model(Settings(model=name, precision=precision))


def test_a_model_that_sets_its_own_precision_is_not_measured_in_another(
    file: Path, tmp_path: Path
) -> None:
    """One that is saved keeps its own too."""
    before = keras.config.dtype_policy()
    half = "keras.config.set_dtype_policy('mixed_float16')\ngood ="
    file.write_text(FILE.replace("good =", half))
    whole = str(tmp_path / "whole.keras")
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).save(whole)
    pair: tuple[Precision, Precision] = "mixed_float16", "tf32"
    try:
        for name, own, other in ((f"{file}:good", *pair), (whole, *pair[::-1])):
            says = f"trains in {own}, but would be measured in {other}"
            with refused(says) as caught:
                build(name, other)
            assert caught.value.remedy.startswith(f"--precision {own} ")
        assert build(f"{file}:good", "mixed_float16").count_params() == 10
    finally:
        keras.config.set_dtype_policy(before)


def test_a_model_of_a_file_of_floatx_float64_is_measured_in_it(file: Path) -> None:
    from gpubalance.engine import runtime

    wide = "keras.config.set_floatx('float64')\ngood ="
    file.write_text(FILE.replace("good =", wide))
    try:
        runtime.use_precision("tf32")  # as a worker does before it imports the file
        assert {weight.dtype for weight in build(f"{file}:good").weights} == {"float64"}
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def test_probe_is_the_heavy_model_and_small_a_ten_thousandth_of_it() -> None:
    from gpubalance.engine.built_model import count_step
    from gpubalance.engine.data import Samples
    from gpubalance.engine.models import compile_for

    probe = build("probe")
    small = build("small")
    assert probe.count_params() == pytest.approx(78.9e6, rel=0.001)
    counted = []
    for one in (probe, small):
        samples = Samples(one, compile_for(one), seed=0)
        counted.append(known(count_step(one, [samples.make(1)])))
    # Forward, and twice that backward
    assert counted[0] == pytest.approx(12e9, rel=0.2)
    assert 10_000 * counted[1] <= counted[0]

    def kinds(model: Any) -> list[str]:
        return [type(layer).__name__ for layer in model.layers]

    assert kinds(small) == ["AveragePooling2D", *kinds(probe)]


def test_what_a_step_of_attention_computes_is_counted() -> None:
    """What a step of attention computes is counted and of a recurrent layer nothing is told."""
    from gpubalance.engine.built_model import count_step

    def counted(inner: Any) -> float | None:
        inputs = keras.Input((50, 32))
        model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(inner(inputs))))
        model.compile(loss="mse")
        return count_step(model, [(tf.zeros((1, 50, 32)), tf.zeros((1, 1)))])

    inner = layers.MultiHeadAttention(4, 8)
    # The terms are the projections, both products, and the last layer.
    forward = 4 * 2 * 50 * 32 * 32 + 2 * 2 * 50 * 50 * 32 + 2 * 50 * 32
    into_inputs = 3 * 2 * 50 * 32 * 32  # of the first projections, which nothing needs
    expected = pytest.approx(3 * forward - into_inputs, rel=0.1)
    assert counted(lambda x: inner(x, x)) == expected
    assert counted(layers.LSTM(8, return_sequences=True)) is None


def test_a_model_is_an_application_a_file_a_module_or_saved(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is named by an application, a file, a module or what was saved."""
    assert build("MobileNetV2").output_shape == (None, 1000)
    monkeypatch.syspath_prepend(file.parent)
    saved = tmp_path / "net.keras"
    build(f"{file}:good").save(saved)
    for name in (f"{file}:good", "mine:good", str(saved)):
        assert build(name).output_shape == (None, 2)


def test_a_saved_model_with_code_in_it_is_refused(tmp_path: Path) -> None:
    saved = tmp_path / "net.keras"
    mark = tmp_path / "ran"
    code = eval(f"lambda x: (open({str(mark)!r}, 'w').close(), x)[1]")  # noqa: S307  (it must have this path in it)
    body = [keras.Input((4,)), layers.Lambda(code), layers.Dense(2)]
    keras.Sequential(body).save(saved)
    mark.unlink(missing_ok=True)
    with refused("safe mode"):
        build(str(saved))
    assert not mark.exists()


@cases("name", "net.h5", "net.HDF5", "net.pkl", "net.pickle", "net.joblib")
def test_a_saved_model_that_may_run_code_is_refused(tmp_path: Path, name: str) -> None:
    mark = tmp_path / "ran"
    (tmp_path / name).write_bytes(pickle.dumps(_Touches(str(mark))))
    with refused(r"may hold code(.|\n)*→ .*net\.keras"):
        build(str(tmp_path / name))
    assert not mark.exists()


class _Touches:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return open, (self.path, "w")


@pytest.mark.parametrize(("name", "says"), table("refused.toml"))
def test_what_can_not_be_trained(file: Path, name: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        build(name.format(file=file))
    assert says.format(file=file) in f"{caught.value.message} {caught.value.remedy}"


def test_a_command_without_data_does_not_advise_it(file: Path) -> None:
    from gpubalance.engine.models import make_model

    with refused("has the shape") as caught:
        make_model(Settings(model=f"{file}:unknown_shape"), takes_data=False)
    only_random = "with random samples only the batch dimension may be open"
    assert caught.value.remedy == f"give the Input a fixed shape: {only_random}"


SCRIPT = """
import keras
import numpy as np
import tensorflow as tf

@tf.function
def step(model):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(tf.ones((8, 4))))
    model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

def build():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])

{guard}
    model = build()
    model.compile("adam", "mse")
    try:
        {harm}
    except Exception:
        raise
"""


@pytest.mark.parametrize(("harm", "says"), table("harm.toml"))
def test_a_script_must_guard_what_it_does(tmp_path: Path, harm: str, says: str) -> None:
    saved = tmp_path / "kept.weights.h5"
    saved.write_text("of the user's")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(guard="if True:", harm=harm.format(path=saved)))
    with pytest.raises(BadInput) as caught:
        build(f"{script}:build")
    assert says in caught.value.message
    assert 'if __name__ == "__main__"' in caught.value.remedy
    assert saved.read_text() == "of the user's"
    guard = 'if __name__ == "__main__":'
    script.write_text(SCRIPT.format(guard=guard, harm=harm.format(path=saved)))
    model = build(f"{script}:build")
    model.compile("sgd", "mse")
    model.fit(np.ones((2, 4)), np.ones((2, 2)), verbose=0)
    assert saved.read_text() == "of the user's"


def test_the_users_own_error_goes_through(file: Path) -> None:
    with pytest.raises(RuntimeError, match="of the user's own"):
        build(f"{file}:breaks")
