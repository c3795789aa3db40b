"""A model with a step of its own through the program: what no split can train is refused before it is measured."""

from __future__ import annotations

from pathlib import Path

from tests.cli.program import gpubalance

TWO_OPTIMIZERS = """
import keras, tensorflow as tf

class Own(keras.Sequential):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(data[0], data[1], self(data[0], training=True))
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        self.second.apply(grads, self.trainable_variables)
        return {}

def model():
    model = Own([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
    model.second = keras.optimizers.SGD()
    model.second.build(model.trainable_variables)
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model
"""


def test_what_no_split_trains_is_refused_before_it_is_measured(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_OPTIMIZERS)
    ended = gpubalance("balance", "--simulate", "2", "--model", f"{tmp_path}/train.py:model", code=4)
    assert "which is not the optimizer that the model was compiled with" in ended.stderr.replace("\n", " ")
    assert "samples/s" not in ended.stderr + ended.stdout


def test_a_probe_measures_it_and_says_that_balance_will_refuse_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_OPTIMIZERS)
    few = ("--max-batch", "8", "--duration", "0.1")
    ended = gpubalance("probe", "--simulate", "1", *few, "--model", f"{tmp_path}/train.py:model", code=0)
    assert "gpubalance balance will refuse this model" in " ".join((ended.stdout + ended.stderr).split())
    assert "next:" not in ended.stdout
