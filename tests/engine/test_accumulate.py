"""A batch in micro-batches gives one device's weights on the whole batch, in one trace, each replica by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpubalance.errors import BadInput
from gpubalance.settings.device import DeviceProfile
from tests.engine.steps import Steps
from tests.engine.test_exact import (
    TOLERANCE,
    activity_model,
    adam,
    clipped_by_global_norm,
    dense_model,
    difference,
    dropout_off_model,
    float16_model,
    l2_model,
    samples,
    scaled_sgd,
    sgd,
    synchronised_batch_norm_model,
    train_on_one_device,
    with_an_unused_weight,
)

SPLITS = [(sgd, (70, 30), (35, 30)), (adam, (60, 40), (25, 40)), (adam, (100,), (20,))]


def train(steps: Steps, batches: tuple[int, ...], micro_batches: tuple[int, ...]) -> list[float]:
    shape = steps.model.input_shape[1:]
    return [steps.step(x, (y,), batches, micro_batches)[0] for x, y in samples(shape)]


@pytest.mark.parametrize(("make_optimizer", "batches", "micro_batches"), SPLITS)
@pytest.mark.parametrize("make_model", [l2_model, activity_model, dropout_off_model])
def test_micro_batches_equal_one_device(
    tensorflow: Any,
    make_model: Callable[[], Any],
    make_optimizer: Callable[[], Any],
    batches: tuple[int, ...],
    micro_batches: tuple[int, ...],
) -> None:
    expected, expected_losses = train_on_one_device(make_model, make_optimizer)
    steps = Steps(make_model, make_optimizer, [None] * len(batches))
    losses = train(steps, batches, micro_batches)

    assert losses == pytest.approx(expected_losses, abs=TOLERANCE)
    assert difference(steps.weights(), expected) < TOLERANCE


def test_gradients_are_clipped_after_all_micro_batches_are_summed(tensorflow: Any) -> None:
    expected, _ = train_on_one_device(dense_model, clipped_by_global_norm)
    steps = Steps(dense_model, clipped_by_global_norm, [None, None])
    train(steps, (60, 40), (10, 20))
    assert difference(steps.weights(), expected) < TOLERANCE


@pytest.mark.parametrize("xla", [False, True], ids=["", "xla"])
@pytest.mark.parametrize("profile", [None, DeviceProfile(name="paced", alpha_s=0.001, beta_s=0)], ids=["", "paced"])
def test_neither_xla_nor_pace_and_stamps_change_the_weights(
    tensorflow: Any, profile: DeviceProfile | None, xla: bool
) -> None:
    expected, _ = train_on_one_device(activity_model, adam)
    steps = Steps(activity_model, adam, [profile, profile], xla=xla)
    for x, y in samples((6,)):
        steps.step(x, (y,), (70, 30), (35, 10), stamped=profile is not None)
    assert difference(steps.weights(), expected) < TOLERANCE


@pytest.mark.parametrize("xla", [False, True], ids=["", "xla"])
def test_float16_with_loss_scaling_follows_float32(tensorflow: Any, xla: bool) -> None:
    import keras

    expected, _ = train_on_one_device(dense_model, lambda: keras.optimizers.SGD(0.5))
    steps = Steps(float16_model, scaled_sgd, [None, None], xla=xla)
    train(steps, (70, 30), (35, 10))
    assert difference(steps.weights(), expected) < 0.01


def test_an_infinity_in_the_last_micro_batch_skips_the_step(tensorflow: Any) -> None:
    steps = Steps(float16_model, scaled_sgd, [None, None])
    (x, y), *_ = samples((6,))
    x[69] = np.inf
    before = steps.weights()
    steps.step(x, (y,), (70, 30), (35, 30))
    assert difference(steps.weights(), before) == 0


def test_a_weight_without_a_gradient_does_no_harm(tensorflow: Any) -> None:
    assert all(np.isfinite(train(Steps(with_an_unused_weight, sgd, [None, None]), (70, 30), (35, 30))))


def embedding_model() -> Any:
    import keras

    # Its gradient is of the rows that were hit: IndexedSlices, others for each micro-batch.
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            keras.layers.Embedding(50, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )


def test_sparse_gradients_add_up_and_stay_sparse(tensorflow: Any) -> None:
    """Keras' Adam tells an embedding's gradients from dense ones, which put the weights off by 0.07 here."""
    x = np.random.default_rng(3).integers(0, 50, (100, 6)).astype(np.int32)
    y = x[:, 0].astype(np.int64) % 5
    whole, accumulated = Steps(embedding_model, adam, [None, None]), Steps(embedding_model, adam, [None, None])
    for _ in range(3):
        whole.step(x, (y,), (70, 30))
        accumulated.step(x, (y,), (70, 30), (7, 10))
    assert difference(accumulated.weights(), whole.weights()) < TOLERANCE


def test_one_trace_serves_every_size_and_none_is_made_unasked(tensorflow: Any) -> None:
    steps = Steps(dense_model, adam, [None, None])
    (x, y), *_ = samples((6,))
    for batches, micro_batches in (((70, 30), (35, 30)), ((50, 50), (5, 1)), ((4, 96), (4, 48))):
        steps.step(x, (y,), batches, micro_batches)
    assert steps.accumulating().experimental_get_tracing_count() == 1
    assert steps.functions[False].experimental_get_tracing_count() == 0


@pytest.mark.parametrize("xla", [False, True], ids=["", "xla"])
def test_each_replica_accumulates_with_its_own_weights(tensorflow: Any, xla: bool) -> None:
    """A loop's body is built without the replica's device: a nested function could take another replica's weights."""
    import keras

    steps = Steps(dense_model, lambda: keras.optimizers.SGD(0.0), [None, None], xla=xla)
    for variable in steps.model.trainable_variables:
        other = steps.strategy.experimental_local_results(variable.value)[1]
        other.assign(3 * other + 0.1)
    (x, y), *_ = samples((6,))
    whole, _ = steps.step(x, (y,), (70, 30))
    accumulated, _ = steps.step(x, (y,), (70, 30), (35, 10))
    assert accumulated == pytest.approx(whole, abs=TOLERANCE)


def batch_norm_model() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )


def test_no_replicas_loop_waits_for_anothers(tensorflow: Any) -> None:
    """TensorFlow orders ops that change something: loops with batch normalisation and dropout must not take turns."""
    steps = Steps(batch_norm_model, adam, [None, None])
    (x, y), *_ = samples((6,))
    steps.step(x, (y,), (70, 30), (35, 10))
    graph = steps.accumulating().get_concrete_function().graph
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


def test_batch_normalisation_sees_each_micro_batch(tensorflow: Any) -> None:
    steps = Steps(batch_norm_model, sgd, [None, None])
    (x, y), *_ = samples((6,))
    steps.step(x, (y,), (80, 20), (40, 20))
    expected = np.zeros(6)
    for part in (x[:40], x[40:80]):
        expected = 0.5 * expected + 0.5 * part.mean(axis=0)
    mean = next(v for v in steps.model.non_trainable_variables if "moving_mean" in v.path)
    np.testing.assert_allclose(steps.strategy.experimental_local_results(mean.value)[0].numpy(), expected, atol=1e-5)


def test_synchronised_batch_normalisation_is_refused(tensorflow: Any) -> None:
    with pytest.raises(BadInput, match="synchronises batch normalisation"):
        Steps(synchronised_batch_norm_model, sgd, [None, None]).accumulating()


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
