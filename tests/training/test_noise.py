"""The noise scale that a monitor measures in training, against the true one."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from gpubalance.cli.parameters import noise_scale
from gpubalance.errors import UsageError
from gpubalance.planning.noise import NoiseScale
from gpubalance.results.plan import Noise, Plan
from gpubalance.results.records import read_record
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.planning import PlanRequest
from tests.cli.program import ROOT
from tests.support.cases import cases, full
from tests.support.late import keras, layers, optimizers
from tests.support.told import refused
from tests.training.cases import simulated

INPUTS = 50
OUTPUTS = 20
GLOBAL_BATCH = 100
STEPS = 240
# Of y = x·w + ε, at weights of 0: a sample's gradient is −2(x·w + ε)x. With ‖w‖ = 1, ε of variance
# 1 and normal x of d numbers tr Σ is 4(2d + 1) and ‖G‖² is 4. Several outputs have the same ratio,
# and vary less from step to step.
TRUE = 2 * INPUTS + 1


def regression() -> tuple[Any, Any]:
    draw = np.random.default_rng(7)
    x = draw.standard_normal((GLOBAL_BATCH * STEPS, INPUTS)).astype("float32")
    weights = draw.standard_normal((INPUTS, OUTPUTS))
    y = x @ (weights / np.linalg.norm(weights, axis=0))
    return x, (y + draw.standard_normal(y.shape)).astype("float32")


def still(split: Any, *, dtype: str = "float32") -> Any:
    """A linear model that does not learn, so that its noise scale stays."""
    with split.scope():
        how = {"use_bias": False, "kernel_initializer": "zeros", "dtype": dtype}
        body = [keras.Input((INPUTS,)), layers.Dense(OUTPUTS, **how)]
        last = layers.Activation("linear", dtype="float32")
        model = keras.Sequential([*body, last])
        optimizer = optimizers.SGD(0.0)
        if dtype == "mixed_float16":
            optimizer = optimizers.LossScaleOptimizer(optimizer)
        model.compile(optimizer, "mse")
    return model


OF_HALF = full(((70, 30),), "mixed_float16")
IN_PARTS = (((70, 30), (20, 30)), "float32")


@cases("shares, dtype", IN_PARTS, OF_HALF)
def test_it_is_the_true_one_of_a_linear_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shares: Any, dtype: str
) -> None:
    split = simulated(*shares)
    file = tmp_path / "noise.json"
    monitor = split.monitor(every=1, noise=file)
    options: Any = {"shuffle": False, "verbose": 0, "callbacks": [monitor]}
    split.fit(still(split, dtype=dtype), *regression(), **options)
    (epoch,) = monitor.epochs
    assert epoch.noise_scale == pytest.approx(TRUE, rel=0.05)
    low, high = epoch.noise_scale_ci95
    assert low < TRUE < high
    written = json.loads(file.read_text())
    assert written["steps"] == 200  # the latest
    assert noise_scale(str(file)) == written["noise_scale"]
    (told,) = re.findall("(?m)^gradient noise scale.*", capsys.readouterr().out)
    assert "at a global batch of 100 a sample gives " in told


@pytest.mark.full
def test_rows_of_an_embedding_that_meet_in_a_batch_are_one() -> None:
    """An embedding is a dense layer on one-hot inputs: so is its noise scale."""

    draw = np.random.default_rng(3)
    ids = draw.integers(0, 5, (1000, 6))
    y = draw.standard_normal(1000) + 3
    one_hot = np.eye(5, dtype="float32")[ids]
    dense = partial(layers.Dense, use_bias=False, kernel_initializer="ones")
    found = []
    of_rows = partial(layers.Embedding, 5, 4, "ones")
    for first, x in ((of_rows, ids), (partial(dense, 4), one_hot)):
        split = simulated((70, 30))
        inputs = layers.Input(x.shape[1:])
        with split.scope():
            body = layers.GlobalAveragePooling1D()(first()(inputs))
            model = keras.Model(inputs, dense(1)(body))
            model.compile(optimizers.SGD(0.0), "mse")
        monitor = split.monitor(every=1, noise=True)
        split.fit(model, x, y, verbose=0, shuffle=False, callbacks=[monitor])
        found.append(monitor.epochs[0].noise_scale)
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_a_batch_in_one_piece_on_one_device_is_refused_with_the_remedy() -> None:
    in_one = r"one device has it in one piece(.|\n)*micro_batches=\[50\]"
    with refused(in_one, UsageError):
        simulated((100,)).monitor(noise=True)


def test_with_a_plan_it_names_the_split_that_learns_faster() -> None:
    from gpubalance.training.step_warnings import noise_text

    plan = read_record(ROOT / "tests/saved/plan-by-global-batch.json", Plan)
    scale = NoiseScale(300.0, (250.0, 350.0))
    told = noise_text(scale, plan.split, plan)
    at_batch = "at a global batch of 1584 a sample gives 16 % of the progress that it "
    assert told.startswith(f"gradient noise scale 300 (250 to 350): {at_batch}")
    assert "would reach the same loss 2." in told
    assert "× sooner; learning rate × 0." in told
    large = noise_text(NoiseScale(1e6, (0.9e6, 1.1e6)), plan.split, plan)
    assert large.endswith("batch would reach the same loss clearly sooner")
    hardly = noise_text(NoiseScale(1e4, (0.9e4, 1.1e4)), plan.split, plan)
    assert "672/464 would reach the same loss 1.01 × sooner; learning rate" in hardly
    small = noise_text(scale, BatchSplit((8, 8)), plan)
    assert "a sample gives 95 % of the progress" in small
    unknown = NoiseScale(None, None, "2 steps are too few")
    text = noise_text(unknown, plan.split, plan)
    assert text == "gradient noise scale not known: 2 steps are too few"


def test_a_change_names_the_device_whose_time_changed_most() -> None:
    from gpubalance.planning.follow import SplitChange
    from gpubalance.training.step_warnings import change_text, gain_text

    said = {
        (1.0, 1.04): "",
        (1.31, 0.8): ", GPU:0 became 31 % slower",
        (1.31, 0.6): ", GPU:1 became 40 % faster",
    }
    splits = BatchSplit((944, 640)), BatchSplit((812, 772))
    for slowdown, moved in said.items():
        change = SplitChange(340, *splits, 1.157, slowdown)
        told = change_text(change, ["GPU:0", "GPU:1"])
        gives = "1.16 × what the old split now gives"
        assert told == f"step 340: 944/640 → 812/772{moved}; {gives}"
    told = "2 changes of the split, the first in step 340: 1.14 × what 944/640 would have given since"
    assert gain_text([change, change], 1.14) == told
    once = "1 change of the split, the first in step 340: too"
    assert gain_text([change], None).startswith(once)


@cases("text", "0", "-5", "nan", "inf", "1e13")
def test_what_is_no_noise_scale_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        PlanRequest(noise_scale=noise_scale(text))


def test_a_file_without_one_is_refused_with_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "noise.json"
    with refused(r"(?s)can't read.*split\.monitor\(noise=", UsageError):
        noise_scale(str(file))
    unknown: Any = {"noise_scale": None, "unknown": "2 steps are too few"}
    unknown |= {"created": "now", "model": "m", "noise_scale_ci95": None}
    file.write_text(Noise(steps=2, global_batch=8, **unknown).model_dump_json())
    with refused(r"has no noise scale: 2 steps are too few"):
        noise_scale(str(file))
