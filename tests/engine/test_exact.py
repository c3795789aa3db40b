"""The weights after some uneven steps are those of one device on the whole batch. The oracle is written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpubalance.settings.device import DeviceProfile
from tests.engine.steps import Steps
from tests.late import keras, tf

STEPS = 5
PACED = DeviceProfile(name="paced", alpha_s=0.005, beta_s=0)
GLOBAL_BATCH = 100
# Float32 with another order of summation: Adam divides by gradients near 0, where that shows most.
TOLERANCE = 1e-5


def dense_model(**options: Any) -> Any:
    first = keras.layers.Dense(16, activation="tanh", **options)
    return keras.Sequential([keras.Input((6,)), first, keras.layers.Dense(5, activation="softmax", dtype="float32")])


def l2_model() -> Any:
    return dense_model(kernel_regularizer=keras.regularizers.L2(0.02))


def activity_model() -> Any:
    return dense_model(activity_regularizer=keras.regularizers.L2(0.02))


def synchronised_batch_norm_model() -> Any:
    # A bias before it has no effect, so its gradient is 0 but for rounding, which Adam would divide by itself.
    body = [keras.layers.Dense(16, use_bias=False), keras.layers.BatchNormalization(synchronized=True)]
    last = [keras.layers.Activation("tanh"), keras.layers.Dense(5, activation="softmax")]
    return keras.Sequential([keras.Input((6,)), *body, *last])


def sgd() -> Any:
    return keras.optimizers.SGD(0.5, momentum=0.9)


def adam() -> Any:
    return keras.optimizers.Adam(0.01)


def clipped_by_value() -> Any:
    return keras.optimizers.SGD(0.5, clipvalue=0.01)


def samples(shape: tuple[int, ...], *, last: int = GLOBAL_BATCH) -> list[tuple[Any, Any]]:
    random = np.random.default_rng(3)
    return [
        (random.normal(size=(size, *shape)).astype(np.float32), random.integers(0, 5, size))
        for size in (*[GLOBAL_BATCH] * (STEPS - 1), last)
    ]


def train_on_one_device(
    make_model: Callable[[], Any], make_optimizer: Callable[[], Any], *, last: int = GLOBAL_BATCH
) -> tuple[list[Any], list[float]]:
    """The oracle: TensorFlow and Keras alone, no strategy, the loss by Keras' own mean over the batch.

    The last batch has `last` samples.
    """
    keras.utils.set_random_seed(7)
    model, optimizer = make_model(), make_optimizer()
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy()
    losses = []
    for inputs, labels in samples(model.input_shape[1:], last=last):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True)) + sum(model.losses)
        grads = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply(grads, model.trainable_variables)
        losses.append(float(loss))
    return [v.numpy() for v in model.weights], losses


def difference(a: list[Any], b: list[Any]) -> float:
    return max(float(np.max(np.abs(x - y))) for x, y in zip(a, b, strict=True))


def with_an_unused_weight() -> Any:
    class Unused(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:  # noqa: ARG002  (Keras gives it)
            self.unused = self.add_weight(shape=(3,), name="unused")

        def call(self, x: Any) -> Any:
            return x

    return keras.Sequential([keras.Input((6,)), Unused(), keras.layers.Dense(5, activation="softmax")])


def float16_model() -> Any:
    return dense_model(dtype="mixed_float16")


def scaled_sgd() -> Any:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=2.0**10)


def trained(
    make_model: Callable[[], Any],
    make_optimizer: Callable[[], Any],
    batches: tuple[int, ...] = (70, 30),
    micro_batches: tuple[int, ...] | None = None,
    *,
    profile: DeviceProfile | None = None,
    stamped: bool = False,
    xla: bool = False,
) -> tuple[Steps, list[float]]:
    """The product's step after some training, and each step's loss."""
    steps = Steps(make_model, make_optimizer, [profile] * len(batches), xla=xla)
    data = samples(steps.model.input_shape[1:])
    return steps, [steps.step(x, (y,), batches, micro_batches, stamped=stamped)[0] for x, y in data]


PACED_XLA = {"stamped": True, "xla": True, "profile": PACED}


@pytest.mark.parametrize(
    "case",
    [
        (l2_model, sgd, (70, 30), None, {}),
        (synchronised_batch_norm_model, adam, (1, 1, 98), None, {}),
        (activity_model, adam, (60, 40), (25, 40), {}),
        (dense_model, adam, (100,), (20,), {}),
        (dense_model, clipped_by_value, (70, 30), (10, 15), {}),  # Keras' order, clipped then summed, is off by 0.02
        (activity_model, adam, (70, 30), None, {"stamped": True}),
        (activity_model, adam, (70, 30), (35, 10), PACED_XLA),
    ],
)
def test_uneven_steps_equal_one_device_whether_stamped_paced_or_compiled(tensorflow: Any, case: Any) -> None:
    """With the oracle by hand; those of tests/training, by Keras' own fit, are many more."""
    make_model, make_optimizer, *sizes, options = case
    expected, expected_losses = train_on_one_device(make_model, make_optimizer)
    steps, losses = trained(make_model, make_optimizer, *sizes, **options)
    assert losses == pytest.approx(expected_losses, abs=TOLERANCE)
    assert difference(steps.weights(), expected) < TOLERANCE
    assert replicas_are_equal(steps)


def replicas_are_equal(steps: Steps) -> bool:
    copies = [steps.strategy.experimental_local_results(v.value) for v in steps.model.trainable_variables]
    return all((own[0].numpy() == other.numpy()).all() for own in copies for other in own)


def test_a_weight_without_a_gradient_does_no_harm(tensorflow: Any) -> None:
    assert all(np.isfinite(trained(with_an_unused_weight, sgd, profile=PACED, micro_batches=(35, 30))[1]))


# On replica 1, and in replica 0's last micro-batch.
@pytest.mark.parametrize(("bad_sample", "micro_batches"), [(99, None), (69, (35, 30))])
def test_an_infinity_on_any_replica_skips_the_step_on_all(
    tensorflow: Any, bad_sample: int, micro_batches: tuple[int, ...] | None
) -> None:
    steps, _ = trained(float16_model, scaled_sgd, (70, 30), micro_batches)
    (x, y), *_ = samples((6,))
    before, scale = steps.weights(), float(steps.optimizer.dynamic_scale.numpy())

    spoilt = x.copy()
    spoilt[bad_sample] = np.inf
    steps.step(spoilt, (y,), (70, 30), micro_batches)
    assert difference(steps.weights(), before) == 0
    assert float(steps.optimizer.dynamic_scale.numpy()) == scale / 2

    steps.step(x, (y,), (70, 30), micro_batches)
    assert difference(steps.weights(), before) > 0
    assert all(np.isfinite(w).all() for w in steps.weights())
    assert replicas_are_equal(steps)


def test_float16_with_loss_scaling_follows_float32(tensorflow: Any) -> None:
    expected, _ = train_on_one_device(dense_model, lambda: keras.optimizers.SGD(0.5))
    for xla, micro_batches in ((False, None), (True, (35, 10))):
        steps, _ = trained(float16_model, scaled_sgd, (70, 30), micro_batches, xla=xla)
        assert difference(steps.weights(), expected) < 0.01


def test_one_trace_serves_every_split(tensorflow: Any) -> None:
    steps = Steps(dense_model, adam, [None, None])
    (x, y), *_ = samples((6,))
    for batches, micro_batches in (((70, 30), (35, 30)), ((50, 50), (5, 1)), ((3, 97), (3, 48))):
        steps.step(x, (y,), batches)
        steps.step(x, (y,), batches, micro_batches)
    assert [len(steps.traces(micro=micro)) for micro in (False, True)] == [1, 1]
