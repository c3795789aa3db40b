"""A batch in micro-batches: what is special of it. That it gives one device's weights is tested in test_exact.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpubalance.settings.device import DeviceProfile
from tests.engine.steps import Steps
from tests.engine.test_exact import TOLERANCE, adam, dense_model, samples, sgd
from tests.late import keras


@pytest.mark.parametrize("xla", [False, True], ids=["", "xla"])
def test_each_replica_accumulates_with_its_own_weights(tensorflow: Any, xla: bool) -> None:
    """A loop's body is built without the replica's device: a nested function could take another replica's weights."""
    steps = Steps(dense_model, lambda: keras.optimizers.SGD(0.0), [None, None], xla=xla)
    for variable in steps.model.trainable_variables:
        other = steps.strategy.experimental_local_results(variable.value)[1]
        other.assign(3 * other + 0.1)
    (x, y), *_ = samples((6,))
    whole, _ = steps.step(x, (y,), (70, 30))
    accumulated, _ = steps.step(x, (y,), (70, 30), (35, 10))
    assert accumulated == pytest.approx(whole, abs=TOLERANCE)


def batch_norm_model() -> Any:
    body = [keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.5)]
    return keras.Sequential([keras.Input((6,)), *body, keras.layers.Dense(5, activation="softmax")])


def test_no_replicas_loop_waits_for_anothers(tensorflow: Any) -> None:
    """TensorFlow orders ops that change something: loops with batch normalisation and dropout must not take turns."""
    steps = Steps(batch_norm_model, adam, [None, None])
    (x, y), *_ = samples((6,))
    steps.step(x, (y,), (70, 30), (35, 10))
    graph = steps.traces(micro=True)[0].graph
    first, second = (op for op in graph.get_operations() if op.type in ("While", "StatelessWhile"))
    assert first.device != second.device
    assert first not in ancestors(second)
    assert second not in ancestors(first)


def ancestors(op: Any) -> set[Any]:
    found: set[Any] = set()
    rest = [op]
    while rest:
        one = rest.pop()
        new = {*one.control_inputs, *(tensor.op for tensor in one.inputs)} - found
        found |= new
        rest += new
    return found


def test_moving_averages_of_micro_batches_are_those_of_their_batch(tensorflow: Any) -> None:
    steps = Steps(batch_norm_model, sgd, [None, None])
    (x, y), *_ = samples((6,))
    steps.step(x, (y,), (80, 20), (40, 20))
    expected = 0.5 * x.mean(axis=0)
    mean = next(v for v in steps.model.non_trainable_variables if "moving_mean" in v.path)
    np.testing.assert_allclose(steps.strategy.experimental_local_results(mean.value)[0].numpy(), expected, atol=1e-5)


def test_memory_is_a_micro_batchs_and_time_is_k_times_one(tensorflow: Any) -> None:
    profile = DeviceProfile(
        name="paced", alpha_s=0.02, beta_s=0.001, memory=1000, base_memory=100, memory_per_sample=10
    )
    steps = Steps(dense_model, adam, [profile, profile])
    x, y = np.zeros((220, 6), np.float32), (np.zeros(220, np.int64),)
    for _ in range(2):
        stamps = steps.step(x, y, (180, 40), (90, 40), stamped=True)[1]
    compute = stamps[:, 1] - stamps[:, 0]
    assert compute[0] >= 2 * (0.02 + 0.001 * 90) - 1e-9
    assert compute[1] >= 0.02 + 0.001 * 40 - 1e-9
    with pytest.raises(tensorflow.errors.ResourceExhaustedError, match="replica 0: batch 91"):
        steps.step(x, y, (182, 38), (91, 38))
