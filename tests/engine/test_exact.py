"""The weights after some uneven steps are those of one device on the whole batch.

The oracle is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpubalance.settings.device import DeviceProfile
from gpubalance.system import versions
from tests.engine.steps import Steps
from tests.support.cases import cases, full
from tests.support.late import keras, layers, losses, optimizers, tf
from tests.training.cases import largest
from tests.training.models import dense
from tests.training.samples import numbers

Make = Callable[[], Any]
STEPS = 5
PACED = DeviceProfile(name="paced", alpha_s=0.005, beta_s=0)
GLOBAL_BATCH = 100
# Float32 is summed in another order. That shows most where Adam divides by gradients near 0.
TOLERANCE = 1e-5


def dense_model(**options: Any) -> Any:
    return keras.Sequential(dense(**options))


def words_model() -> Any:
    body = [layers.Embedding(9, 2), layers.Flatten(), layers.Dense(3, "softmax")]
    return keras.Sequential([keras.Input((6,)), *body])


def active() -> Any:
    return dense_model(activity="l2")


def sgd() -> Any:
    return optimizers.SGD(0.5, momentum=0.9)


def adam() -> Any:
    return optimizers.Adam(0.01)


def clipped_by_value() -> Any:
    return optimizers.SGD(0.5, clipvalue=0.01)


def samples() -> list[tuple[Any, Any]]:
    """A global batch for each step."""
    x, y = numbers(STEPS * GLOBAL_BATCH)
    return list(zip(np.split(x, STEPS), np.split(y, STEPS), strict=True))


def train_on_one_device(
    make_model: Callable[[], Any], make_optimizer: Callable[[], Any]
) -> tuple[list[Any], list[Any]]:
    """The oracle: TensorFlow and Keras alone, without a strategy.

    The loss is Keras' own mean over the batch.
    """
    keras.utils.set_random_seed(7)
    model = make_model()
    optimizer = make_optimizer()
    optimizer.build(model.trainable_variables)
    loss_of = losses.SparseCategoricalCrossentropy()
    found = []
    for inputs, labels in samples():
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True)) + sum(model.losses)
        grads = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply(grads, model.trainable_variables)
        found.append(float(loss))
    return [v.numpy() for v in model.weights], found


def float16_model() -> Any:
    return dense_model(dtype="mixed_float16")


def scaled_sgd() -> Any:
    return optimizers.LossScaleOptimizer(optimizers.SGD(0.5), initial_scale=2.0**10)


def trained(
    make_model: Make,
    make_optimizer: Make,
    batches: tuple[int, ...] = (70, 30),
    micro_batches: tuple[int, ...] | None = None,
    *,
    profile: DeviceProfile | None = None,
    stamped: bool = False,
    xla: bool = False,
) -> tuple[Steps, list[float]]:
    """The product's step after some training, and each step's loss."""
    steps = Steps(make_model, make_optimizer, [profile] * len(batches), xla=xla)
    found = []
    for x, y in samples():
        loss, _ = steps.step(x, (y,), batches, micro_batches, stamped=stamped)
        found.append(loss)
    return steps, found


PACED_XLA = {"stamped": True, "xla": True, "profile": PACED}
# The parity check finds that Keras divided no such regularizer before; these steps have none
REGULARISED = (
    active if versions.numbers(versions.software().keras) >= (3, 14) else dense_model
)
CASES: list[Any] = [
    (REGULARISED, sgd, (60, 40), (25, 40), {}),
    (dense_model, adam, (100,), (20,), {}),
    # Keras' order, which clips and then sums, is off by 0.02.
    (dense_model, clipped_by_value, (70, 30), (10, 15), {}),
]
CASES.append(full((REGULARISED, adam, (70, 30), (35, 10), PACED_XLA)))


@pytest.mark.parametrize("case", CASES)
def test_uneven_steps_stamped_paced_or_compiled_equal_one_device(case: Any) -> None:
    """With the oracle by hand; those of tests/training, by Keras' own fit, are many more."""
    make_model, make_optimizer, *sizes, options = case
    expected, expected_losses = train_on_one_device(make_model, make_optimizer)
    steps, losses = trained(make_model, make_optimizer, *sizes, **options)
    assert losses == pytest.approx(expected_losses, abs=TOLERANCE)
    assert largest(steps.weights(), expected) < TOLERANCE
    assert replicas_are_equal(steps)


def replicas_are_equal(steps: Steps) -> bool:
    of_each = steps.strategy.experimental_local_results
    copies = [of_each(variable.value) for variable in steps.model.trainable_variables]
    return all(len({one.numpy().tobytes() for one in own}) == 1 for own in copies)


# The bad sample is on replica 1, and then in replica 0's last micro-batch.
@cases("bad_sample, micro_batches", (99, None), (69, (35, 30)))
def test_an_infinity_on_any_replica_skips_the_step_on_all(
    bad_sample: int, micro_batches: tuple[int, ...] | None
) -> None:
    steps, _ = trained(float16_model, scaled_sgd, (70, 30), micro_batches)
    (x, y), *_ = samples()
    before = steps.weights()
    scale = float(steps.optimizer.dynamic_scale.numpy())

    spoilt = x.copy()
    spoilt[bad_sample] = np.inf
    steps.step(spoilt, (y,), (70, 30), micro_batches)
    assert largest(steps.weights(), before) == 0
    assert float(steps.optimizer.dynamic_scale.numpy()) == scale / 2

    steps.step(x, (y,), (70, 30), micro_batches)
    assert largest(steps.weights(), before) > 0
    assert all(np.isfinite(w).all() for w in steps.weights())
    assert replicas_are_equal(steps)


@pytest.mark.full
def test_float16_with_loss_scaling_follows_float32_compiled_too() -> None:
    """Traced it is a case of tests/training."""
    expected, _ = train_on_one_device(dense_model, lambda: optimizers.SGD(0.5))
    steps, _ = trained(float16_model, scaled_sgd, (70, 30), (35, 10), xla=True)
    assert largest(steps.weights(), expected) < 0.01


def test_one_trace_serves_every_split() -> None:
    steps = Steps(dense_model, adam, [None, None])
    (x, y), *_ = samples()
    splits = ((70, 30), (35, 30)), ((50, 50), (5, 1)), ((3, 97), (3, 48))
    for batches, micro_batches in splits:
        steps.step(x, (y,), batches)
        steps.step(x, (y,), batches, micro_batches)
    assert [len(steps.traces(micro=micro)) for micro in (False, True)] == [1, 1]


def test_python_gives_all_sums_of_a_step_their_keys_at_once() -> None:
    """A key by itself takes some 50 µs of the host for each sum and device."""
    steps = Steps(dense_model, adam, [None, None])
    taken = _keys_taken_by_a_step(steps)
    (traced,) = steps.traces(micro=False)
    made = traced.graph.get_operations()
    sums = [one for one in made if "CollectiveReduce" in one.type]
    assert len(sums) > len(steps.names)  # in packs
    assert len(traced.graph.deferred_external_captures) == 1
    # They are as many as its sums, and none is taken twice.
    assert set(taken.values()) == {len(sums) // 2}


def test_sums_of_rows_take_their_keys_with_the_others() -> None:
    """Rows are summed in a branch: gathered if they are as many on each device, else one by one."""
    steps = Steps(words_model, adam, [None, None])
    taken = _keys_taken_by_a_step(steps)
    (traced,) = steps.traces(micro=False)
    assert len(traced.graph.deferred_external_captures) == 1
    assert len(set(taken.values())) == 1
    assert replicas_are_equal(steps)


def _keys_taken_by_a_step(steps: Steps) -> dict[str, int]:
    """By device, how many keys a step takes that is not the first."""
    keys_after = []
    for x, y in samples()[:2]:
        steps.step(np.abs(x) % 9, (y,), (60, 40))
        keys_after.append(_keys_taken(steps))
    before, after = keys_after
    return {name: after[name] - before[name] for name in before}


def _keys_taken(steps: Steps) -> dict[str, int]:
    """By device, the next key."""
    taken: dict[str, int] = {}
    keys = steps.strategy.extended._collective_keys
    for of_group in keys._instance_key_table.values():
        for device, key in of_group.items():
            taken[device] = max(taken.get(device, 0), key)
    return taken
