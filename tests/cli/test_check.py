"""Whether a model and its data can be measured and split, before anything is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpubalance.results.check import ModelCheck
from tests.cli.program import QUICK_PAIR, SHORT, TINY, gpubalance, here

TRAIN = """
import keras, numpy as np

def built(loss):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")], name="mine")
    model.compile("adam", loss)
    return model

def build():
    return built("sparse_categorical_crossentropy")

def summing():
    return built(lambda y, p: keras.ops.sum(keras.losses.sparse_categorical_crossentropy(y, p)))

def arrays():
    return np.random.random((64, 6)).astype("float32"), np.arange(64) % 3
"""


def test_it_says_what_a_balance_would_find_out_minutes_later(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    own = ("check", "--data", "train.py:arrays", "--model")
    done = gpubalance(*own, "train.py:build", "-q", cwd=tmp_path, code=0)
    assert done.stdout.startswith("train.py:build can be measured; a split trains it\n")
    assert (
        "mine: 21 parameters to train, gradients of 84 B; train.py:arrays gives samples"
        in done.stdout
    )
    assert (
        "next: gpubalance balance --model train.py:build --data train.py:arrays"
        in done.stdout
    )

    refused = gpubalance(*own, "train.py:summing", "--json", cwd=tmp_path, code=4)
    found = ModelCheck.model_validate(json.loads(refused.stdout))
    assert found.refused is not None
    assert "sums over the batch" in found.refused.message
    assert "sums over the batch" in refused.stderr
    assert "→ return a value for each sample" in refused.stderr


@pytest.mark.usefixtures("stand_in")
def test_a_balance_says_it_before_it_measures() -> None:
    done = here("balance", "--simulate", QUICK_PAIR, "--model", TINY, *SHORT, code=0)
    lines = done.stderr.splitlines()
    (told,) = [
        number
        for number, line in enumerate(lines)
        if "parameters to train, gradients of" in line
    ]
    assert told < next(
        number for number, line in enumerate(lines) if " batch 8: " in line
    )


@pytest.mark.usefixtures("stand_in")
def test_a_balance_with_a_kept_probe_says_it_too() -> None:
    asked = ("--simulate", QUICK_PAIR, "--model", TINY, *SHORT)
    here("balance", *asked, code=0)
    lines = here("balance", *asked, code=0).stderr.splitlines()
    assert any("planning with the probe of" in line for line in lines)
    assert (
        len([line for line in lines if "parameters to train, gradients of" in line])
        == 1
    )


@pytest.mark.usefixtures("in_process")
def test_without_a_model_there_is_nothing_to_check() -> None:
    assert "→ --model train.py:build" in here("check", code=2).stderr
