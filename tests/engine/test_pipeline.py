"""A model cut into segments on several devices: what one device would compute, wherever it is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpubalance.planning.pipeline.schedule import Task
from gpubalance.planning.pipeline.segments import Segment
from tests.engine import zoo
from tests.engine.pipelines import Trained, cut_outputs, trained


@pytest.fixture(scope="module")
def keras(tensorflow: Any) -> Any:
    """Keras, in a process with eight CPU devices."""
    del tensorflow
    import keras

    return keras


@pytest.fixture(scope="module")
def regularised(keras: Any) -> Trained:
    """Batch normalisation, dropout and regularisers on three devices, with most of what an optimizer can do."""

    def slower(optimizer: Any) -> None:  # as a callback would
        optimizer.learning_rate = float(optimizer.learning_rate.numpy()) * 0.9

    def adamw() -> Any:
        options = {"weight_decay": 0.1, "global_clipnorm": 0.05, "use_ema": True, "ema_momentum": 0.9}
        return keras.optimizers.AdamW(0.01, **options)

    return trained(zoo.regularised, adamw, between=slower)


@pytest.mark.parametrize("make", [zoo.masked, zoo.nested, zoo.several, zoo.shared, zoo.branches])
def test_wherever_it_is_cut_a_model_gives_the_same(keras: Any, make: Any) -> None:
    from gpubalance.engine.data import Samples
    from gpubalance.engine.losses import fit_loss
    from gpubalance.engine.pipeline.blocks import blocks_of
    from gpubalance.engine.pipeline.calls import calls_of

    model = make()
    calls = calls_of(model)
    inputs, _ = Samples(model, fit_loss(model), seed=0).make(3)
    expected = keras.tree.flatten(model(inputs, training=False))
    cuts = blocks_of(calls).starts[1:]
    assert cuts
    for cut in cuts:
        for mine, its in zip(cut_outputs(model, calls, cut, inputs), expected, strict=True):
            np.testing.assert_array_equal(mine, its)


def test_regularised_layers_train_as_on_one_device(regularised: Trained) -> None:
    assert max(regularised.weights, regularised.slots, regularised.losses) < 1e-5


@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(zoo.masked, {"clipvalue": 1e-3}, id="masks and rows of an embedding"),
        pytest.param(zoo.nested, {"momentum": 0.9}, id="models in a model"),
        pytest.param(zoo.several, {"clipnorm": 1e-2}, id="several inputs and outputs"),
    ],
)
def test_they_train_as_on_one_device(keras: Any, make: Any, options: Any) -> None:
    found = trained(make, lambda: keras.optimizers.SGD(0.5, **options), kind="gpipe")
    assert max(found.weights, found.slots, found.losses) < 1e-5


def test_a_branch_on_a_device_and_the_rest_around_it_on_another_train_as_on_one(keras: Any) -> None:
    segments = [Segment(0, 1, 1), Segment(2, 3, 0), Segment(4, 5, 1)]
    mine = [Task(number, "forward", batch) for batch in range(4) for number in (0, 2)]
    mine += [Task(number, "backward", batch) for batch in range(4) for number in (2, 0)]
    its = [Task(1, kind, batch) for kind in ("forward", "backward") for batch in range(4)]
    found = trained(zoo.branches, keras.optimizers.Adam, segments=segments, orders=[its, mine])
    assert max(found.weights, found.losses) < 1e-5


def test_half_precision_scales_its_loss_on_all_devices_alike(keras: Any) -> None:
    def optimizer() -> Any:
        inner = keras.optimizers.Adam(1e-3, global_clipnorm=0.5)
        # The first steps overflow: then no device may update anything.
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**40)

    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        found = trained(zoo.regularised, optimizer, stages=2)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert max(found.weights, found.losses) < 1e-5
    assert found.slots < 1e-5
