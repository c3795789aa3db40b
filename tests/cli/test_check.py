"""Whether a model and its data can be measured and split, before anything is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpubalance.results.checkup import ModelCheck
from tests.cli.program import QUICK_PAIR, SHORT, TINY, gpubalance, here, one_line
from tests.support.cases import cases
from tests.support.in_process import Program

forked = pytest.mark.usefixtures("forked")

TRAIN = """
import keras, numpy as np, tensorflow as tf

def built(loss):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")], name="mine")
    model.compile("adam", loss)
    return model

def build():
    return built("sparse_categorical_crossentropy")

def summing():
    return built(lambda y, p: keras.ops.sum(keras.losses.sparse_categorical_crossentropy(y, p)))

def without_optimizer():
    model = built("mse")
    model.compile(optimizer=None, loss="mse")
    return model

def open_loop():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])

def normalised():
    layers = keras.layers
    frozen = layers.BatchNormalization()
    frozen.trainable = False
    body = [layers.BatchNormalization(), layers.BatchNormalization(synchronized=True), frozen]
    body += [layers.Dropout(0.3), layers.Dropout(0.0), layers.GaussianNoise(0.1)]
    model = keras.Sequential([keras.Input((6,)), *body, layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    return model

def reading():
    vectorised = keras.layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=6)
    body = [keras.Input((), dtype="string"), vectorised, keras.layers.Embedding(4, 3)]
    return keras.Sequential([*body, keras.layers.GlobalAveragePooling1D()])

def own_call():
    class Own(keras.Model):
        def call(self, x):
            return x
    return Own()

def enlarging():
    body = [keras.layers.RepeatVector(4), keras.layers.Dense(6)]
    model = keras.Sequential([keras.Input((6,)), *body])
    model.compile("adam", "mse", metrics=["accuracy"])
    return model

def cropped():
    x, _ = arrays()
    return x, np.repeat(x[:, None], 3, axis=1)

def batches():
    return tf.data.Dataset.from_tensor_slices(arrays()).batch(32)

def one_hot():
    x, y = arrays()
    return x, np.eye(3)[y]

def arrays():
    return np.random.random((64, 6)).astype("float32"), np.arange(64) % 3
"""


@forked
def test_it_says_what_a_balance_would_find_out_minutes_later(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    own = ("check", "--data", "train.py:arrays", "--model")
    done = gpubalance(*own, "train.py:build", "-q", cwd=tmp_path, code=0)
    assert done.stdout.startswith("train.py:build can be measured; a split trains it\n")
    mine = "mine: 21 trainable parameters, 84 B of gradients"
    samples = "gives 64 samples in all, so a global batch has at most 64 "
    assert f"{mine}; train.py:arrays {samples}" in one_line(done.stdout)
    says = "next: gpubalance balance --simulate 2 --model train.py:build --data train.py:arrays"
    assert says in done.stdout

    refused = gpubalance(*own, "train.py:summing", "--json", cwd=tmp_path, code=4)
    found = ModelCheck.model_validate(json.loads(refused.stdout))
    assert found.refused is not None
    assert "sums over the batch" in found.refused.message
    assert "sums over the batch" in refused.stderr
    assert "→ return one value per sample" in refused.stderr


@pytest.mark.full
@forked
def test_it_says_what_of_a_model_is_local_to_a_device(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    asked = ("--model", "train.py:normalised", "--data", "train.py:batches", "-q")
    done = gpubalance("check", *asked, "--simulate", "2", cwd=tmp_path, code=0)
    told = one_line(done.stdout)
    assert "a split trains it, but not exactly as one device does" in told
    # Neither the synchronised one nor the frozen one.
    assert "1 BatchNormalization layer is not synchronised: each device" in told
    assert "16 samples on each of 2 equal devices" in told
    assert "→ BatchNormalization(synchronized=True)" in told
    assert "1 Dropout, 1 GaussianNoise: each device draws its own random" in told
    assert "next: gpubalance balance --simulate 2 --model" in told

    unlike = ("--simulate", QUICK_PAIR, "--json")
    done = gpubalance("check", *asked, *unlike, cwd=tmp_path, code=0)
    found = ModelCheck.model_validate(json.loads(done.stdout))
    assert found.local_layers.batch_normalizations == 1
    assert found.local_layers.random == (("Dropout", 1), ("GaussianNoise", 1))
    assert any("share, about " in warning.message for warning in found.warnings)


@pytest.mark.full
@forked
def test_it_says_what_an_uncompiled_model_is_measured_with(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    model = ("check", "-q", "--model")
    data = ("--data", "train.py:arrays")
    done = gpubalance(*model, "train.py:open_loop", *data, cwd=tmp_path, code=0)
    told = one_line(done.stdout)
    assert "a split trains it once it is compiled" in told
    assert "measured with Adam and SparseCategoricalCrossentropy" in told
    assert "move it to the model's train_step" in told

    done = gpubalance(*model, "train.py:own_call", *data, cwd=tmp_path, code=4)
    assert "train.py:own_call is not compiled, and its outputs" in done.stderr


@forked
@cases(
    "model, data, what, remedy",
    ("reading", "arrays", "input keras_tensor is text", "vectorise the text in "),
    ("build", "one_hot", ": they are one-hot, and", "use categorical_crossentropy"),
    ("enlarging", "cropped", "3x6, but the model's output has the shape 4x6", "resh"),
    ("without_optimizer", "arrays", "compiled without an optimizer", "compile it"),
)
def test_what_does_not_fit_is_named_with_its_remedy(
    tmp_path: Path, model: str, data: str, what: str, remedy: str
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    asked = ("--model", f"train.py:{model}", "--data", f"train.py:{data}", "-q")
    done = gpubalance("check", *asked, cwd=tmp_path, code=4)
    assert what in done.stderr
    assert f"→ {remedy}" in done.stderr
    assert not done.stdout  # one device does not train it, either


@pytest.mark.usefixtures("stand_in")
def test_a_balance_says_it_before_it_measures_and_with_a_kept_probe() -> None:
    asked = ("--simulate", QUICK_PAIR, "--model", TINY, *SHORT)
    says = " trainable parameters, "
    first, again = (here("balance", *asked, code=0).stderr for _ in range(2))
    assert first.index(says) < first.index(" batch 8: ")
    assert "planning with the probe of" in again
    assert first.count(says) == again.count(says) == 1


@pytest.mark.usefixtures("stand_in")
def test_the_next_command_has_the_settings_that_were_checked() -> None:
    asked = (
        f"--simulate {QUICK_PAIR} --gpus 1 0 --model small --precision float32 --xla "
    )
    asked += "--input host --all-reduce one-device --pack-bytes 4096 --gradients bf16"
    asked += " --time-scale 1.2345678"
    done = here("check", *asked.split(), code=0)
    assert done.stdout.endswith(f"\nnext: gpubalance balance {asked}\n")


@pytest.mark.usefixtures("in_process")
def test_without_a_model_there_is_nothing_to_check() -> None:
    assert "→ --model train.py:build" in here("check", code=2).stderr


def test_an_interrupted_check_says_so(
    monkeypatch: pytest.MonkeyPatch, in_process: Program
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpubalance.jobs.check.group_for", interrupted)
    done = in_process(["check", "--model", "small"])
    told = "interrupted: nothing was checked yet\n"
    assert (done.code, done.out, done.err) == (130, "", told)
