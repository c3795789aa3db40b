"""The weights after some uneven steps are those of one device on the whole batch. The oracle is written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpubalance.settings.device import DeviceProfile
from tests.engine.steps import Steps

STEPS = 5
GLOBAL_BATCH = 100
# Float32 with another order of summation: Adam divides by gradients near 0, where that shows most.
TOLERANCE = 1e-5


def dense_model(**options: Any) -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, activation="tanh", **options),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )


def l2_model() -> Any:
    import keras

    return dense_model(kernel_regularizer=keras.regularizers.L2(0.02))


def activity_model() -> Any:
    import keras

    return dense_model(activity_regularizer=keras.regularizers.L2(0.02))


def synchronised_batch_norm_model() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((6,)),
            # A bias here has no effect, so its gradient is 0 but for rounding, which Adam would divide by itself.
            keras.layers.Dense(16, use_bias=False),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Activation("tanh"),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )


def dropout_off_model() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Dropout(0.0),
            keras.layers.Flatten(),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )


def sgd() -> Any:
    import keras

    return keras.optimizers.SGD(0.5, momentum=0.9)


def adam() -> Any:
    import keras

    return keras.optimizers.Adam(0.01)


def clipped_by_global_norm() -> Any:
    import keras

    return keras.optimizers.SGD(0.5, global_clipnorm=0.2)


def clipped_by_norm() -> Any:
    import keras

    return keras.optimizers.SGD(0.5, clipnorm=0.1)


def clipped_by_value() -> Any:
    import keras

    return keras.optimizers.SGD(0.5, clipvalue=0.01)


def adamw_with_averages() -> Any:
    import keras

    return keras.optimizers.AdamW(0.01, weight_decay=0.1, use_ema=True, global_clipnorm=0.2)


def samples(shape: tuple[int, ...]) -> list[tuple[Any, Any]]:
    random = np.random.default_rng(3)
    return [
        (
            random.normal(size=(GLOBAL_BATCH, *shape)).astype(np.float32),
            random.integers(0, 5, GLOBAL_BATCH),
        )
        for _ in range(STEPS)
    ]


def train_on_one_device(
    make_model: Callable[[], Any], make_optimizer: Callable[[], Any]
) -> tuple[list[Any], list[float]]:
    """The oracle: TensorFlow and Keras alone, no strategy, the loss by Keras' own mean over the batch."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(7)
    model, optimizer = make_model(), make_optimizer()
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy()
    losses = []
    for inputs, labels in samples(model.input_shape[1:]):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True)) + sum(model.losses)
        grads = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply(grads, model.trainable_variables)
        losses.append(float(loss))
    return [v.numpy() for v in model.weights], losses


def difference(a: list[Any], b: list[Any]) -> float:
    return max(float(np.max(np.abs(x - y))) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("make_optimizer", "batches"), [(sgd, (70, 30)), (adam, (99, 1)), (adam, (1, 1, 98))])
@pytest.mark.parametrize(
    "make_model", [dense_model, l2_model, activity_model, synchronised_batch_norm_model, dropout_off_model]
)
def test_uneven_steps_equal_one_device(
    tensorflow: Any, make_model: Callable[[], Any], make_optimizer: Callable[[], Any], batches: tuple[int, ...]
) -> None:
    expected, expected_losses = train_on_one_device(make_model, make_optimizer)
    steps = Steps(make_model, make_optimizer, [None] * len(batches))
    losses = [steps.step(x, (y,), batches)[0] for x, y in samples(steps.model.input_shape[1:])]

    assert losses == pytest.approx(expected_losses, abs=TOLERANCE)
    assert difference(steps.weights(), expected) < TOLERANCE


@pytest.mark.parametrize(
    "make_optimizer", [clipped_by_global_norm, clipped_by_norm, clipped_by_value, adamw_with_averages]
)
def test_gradients_are_clipped_after_they_are_summed(tensorflow: Any, make_optimizer: Callable[[], Any]) -> None:
    """Keras' own order, each replica's part clipped and then summed, is off by 0.02 here."""
    expected, _ = train_on_one_device(dense_model, make_optimizer)
    steps = Steps(dense_model, make_optimizer, [None, None])
    for x, y in samples((6,)):
        steps.step(x, (y,), (70, 30))
    assert difference(steps.weights(), expected) < TOLERANCE


def test_an_optimizer_that_accumulates_over_steps_is_refused(tensorflow: Any) -> None:
    import keras

    from gpubalance.errors import BadInput

    with pytest.raises(BadInput, match="gradient_accumulation_steps"):
        Steps(dense_model, lambda: keras.optimizers.SGD(0.5, gradient_accumulation_steps=2), [None, None])


@pytest.mark.parametrize("profile", [None, DeviceProfile(name="paced", alpha_s=0.01, beta_s=0)], ids=["plain", "paced"])
@pytest.mark.parametrize("stamped", [False, True], ids=["unstamped", "stamped"])
def test_neither_stamps_nor_pace_change_the_weights(
    tensorflow: Any, profile: DeviceProfile | None, stamped: bool
) -> None:
    expected, _ = train_on_one_device(l2_model, adam)
    steps = Steps(l2_model, adam, [profile, profile])
    for x, y in samples((6,)):
        steps.step(x, (y,), (70, 30), stamped=stamped)
    assert difference(steps.weights(), expected) < TOLERANCE


def with_an_unused_weight() -> Any:
    import keras

    class Unused(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:  # noqa: ARG002  (Keras gives it)
            self.unused = self.add_weight(shape=(3,), name="unused")

        def call(self, x: Any) -> Any:
            return x

    return keras.Sequential([keras.Input((6,)), Unused(), keras.layers.Dense(5, activation="softmax")])


@pytest.mark.parametrize("profile", [None, DeviceProfile(name="paced", alpha_s=0.01, beta_s=0)], ids=["plain", "paced"])
def test_a_weight_without_a_gradient_does_no_harm(tensorflow: Any, profile: DeviceProfile | None) -> None:
    steps = Steps(with_an_unused_weight, sgd, [profile, profile])
    losses = [steps.step(x, (y,), (70, 30))[0] for x, y in samples((6,))]
    assert all(np.isfinite(losses))


def test_xla_gives_the_same(tensorflow: Any) -> None:
    expected, _ = train_on_one_device(dense_model, sgd)
    steps = Steps(dense_model, sgd, [None, None], xla=True)
    for x, y in samples((6,)):
        steps.step(x, (y,), (70, 30))
    assert difference(steps.weights(), expected) < TOLERANCE


def test_mean_of_means_would_fail(tensorflow: Any) -> None:
    """Keras' way, the mean of the replicas' means, is another gradient at 70/30: the test above sees it."""
    import keras

    tf = tensorflow
    expected, _ = train_on_one_device(dense_model, sgd)
    keras.utils.set_random_seed(7)
    model, optimizer = dense_model(), sgd()
    loss_of = keras.losses.SparseCategoricalCrossentropy()
    variables = [v.value for v in model.trainable_variables]
    for inputs, labels in samples((6,)):
        grads = []
        for part in (slice(0, 70), slice(70, 100)):
            with tf.GradientTape() as tape:
                loss = loss_of(labels[part], model(inputs[part], training=True))
            grads.append(tape.gradient(loss, variables))
        optimizer.apply([(a + b) / 2 for a, b in zip(*grads, strict=True)], model.trainable_variables)
    assert difference([v.numpy() for v in model.weights], expected) > 100 * TOLERANCE


def test_replicas_stay_equal(tensorflow: Any) -> None:
    steps = Steps(dense_model, adam, [None, None])
    for x, y in samples((6,)):
        steps.step(x, (y,), (70, 30))
    for variable in steps.model.trainable_variables:
        first, second = steps.strategy.experimental_local_results(variable.value)
        np.testing.assert_array_equal(first.numpy(), second.numpy())


def float16_model() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, activation="tanh", dtype="mixed_float16"),
            keras.layers.Dense(5, activation="softmax", dtype="float32"),
        ]
    )


def scaled_sgd() -> Any:
    import keras

    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=2.0**10)


@pytest.mark.parametrize("bad_sample", [0, 99], ids=["on replica 0", "on replica 1"])
def test_an_infinity_on_any_replica_skips_the_step_on_all(tensorflow: Any, bad_sample: int) -> None:
    steps = Steps(float16_model, scaled_sgd, [None, None])
    (x, y), *_ = samples((6,))
    steps.step(x, (y,), (70, 30))
    before, scale = steps.weights(), float(steps.optimizer.dynamic_scale.numpy())

    spoilt = x.copy()
    spoilt[bad_sample] = np.inf
    steps.step(spoilt, (y,), (70, 30))
    assert difference(steps.weights(), before) == 0
    assert float(steps.optimizer.dynamic_scale.numpy()) == scale / 2

    steps.step(x, (y,), (70, 30))
    assert difference(steps.weights(), before) > 0
    assert all(np.isfinite(w).all() for w in steps.weights())
    first, second = steps.strategy.experimental_local_results(steps.model.trainable_variables[0].value)
    np.testing.assert_array_equal(first.numpy(), second.numpy())


@pytest.mark.parametrize("xla", [False, True], ids=["", "xla"])
def test_float16_with_loss_scaling_follows_float32(tensorflow: Any, xla: bool) -> None:
    import keras

    expected, _ = train_on_one_device(dense_model, lambda: keras.optimizers.SGD(0.5))
    steps = Steps(float16_model, scaled_sgd, [None, None], xla=xla)
    for x, y in samples((6,)):
        steps.step(x, (y,), (70, 30))
    assert difference(steps.weights(), expected) < 0.01


def test_one_trace_serves_every_split(tensorflow: Any) -> None:
    steps = Steps(dense_model, adam, [None, None])
    (x, y), *_ = samples((6,))
    for batches in ((70, 30), (50, 50), (3, 97)):
        steps.step(x, (y,), batches)
    assert steps.functions[False].experimental_get_tracing_count() == 1
