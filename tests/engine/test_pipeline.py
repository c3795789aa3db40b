"""A model cut into segments on several devices computes what one would, wherever it is cut."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from gpubalance.errors import BadInput, Refused
from gpubalance.planning.pipeline.problem import Segment, Task
from gpubalance.system.versions import numbers, software
from tests.engine import zoo
from tests.engine.pipelines import cut_outputs, graph_of, trained
from tests.support.cases import full
from tests.support.graphs import crossings
from tests.support.late import keras, layers, optimizers, tf
from tests.support.told import refused


def test_regularised_layers_train_as_on_one_device() -> None:
    """With batch normalisation and dropout, on three devices; the optimizer has many options."""

    def slower(optimizer: Any) -> None:  # as a callback would
        optimizer.learning_rate = float(optimizer.learning_rate.numpy()) * 0.9

    def adamw() -> Any:
        averaged = {"use_ema": True, "ema_momentum": 0.9, "weight_decay": 0.1}
        return optimizers.AdamW(0.01, global_clipnorm=0.05, **averaged)

    found = trained(zoo.regularised, adamw, between=slower)
    assert max(found.weights, found.slots, found.losses) < 1e-5


# Since Keras 3.16 a mask is not computed in the graph
AT_MASK = numbers(software().keras) < (3, 16)
CUTS = {zoo.masked: 4 + AT_MASK, zoo.nested: 5, zoo.several: 6, zoo.shared: 2}
CUTS[zoo.branches] = 5


@pytest.mark.parametrize(("make", "count"), CUTS.items())
def test_wherever_it_is_cut_a_model_gives_the_same(make: Any, count: int) -> None:
    model = make()
    calls, blocks, samples = graph_of(model)
    inputs, _ = samples.make(3)
    expected = keras.tree.flatten(model(inputs, training=False))
    assert len(blocks.starts[1:]) == count
    for cut in blocks.starts[1:]:
        found = cut_outputs(model, calls, (0, cut), inputs)
        for mine, its in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, its)


MADE: list[Any] = [
    (zoo.nested, "SGD", {"momentum": 0.9}),
    (zoo.stopped, "AdamW", {"weight_decay": 0.1}),
]
CLIPPED, EACH_CLIPPED = {"global_clipnorm": 1e-2}, {"clipnorm": 1e-2}
MADE.append(full(zoo.masked, "Adam", CLIPPED))
MADE.append(full(zoo.several, "SGD", EACH_CLIPPED))


def hands_a_flag_on() -> bool:
    """Whether this Keras, as a nightly 3.16, calls later layers with an earlier one's flag."""
    given = keras.Input((2,))
    first, second = layers.Dropout(0.5, seed=1), layers.Dropout(0.5, seed=1)
    outputs = keras.Model(given, second(first(given, training=False)))
    return bool((outputs(np.ones((9, 2)), training=True).numpy() == 1).all())


@pytest.mark.parametrize(("make", "kind", "options"), MADE)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_they_train_as_on_one_device(make: Any, kind: str, options: Any) -> None:
    if make is zoo.nested and hands_a_flag_on():
        pytest.skip("this Keras trains later layers with training=False, too")
    found = trained(make, lambda: getattr(keras.optimizers, kind)(0.01, **options))
    assert max(found.weights, found.slots, found.losses) < 1e-5


def test_a_branch_on_a_device_of_its_own_trains_as_on_one() -> None:
    """A branch on a device and the rest around it on another train as on one."""
    segments = [Segment(0, 1, 1), Segment(2, 3, 0), Segment(4, 5, 1)]
    mine = [Task(number, "forward", batch) for batch in range(4) for number in (0, 2)]
    mine += [Task(number, "backward", batch) for batch in range(4) for number in (2, 0)]
    kinds: tuple[Any, ...] = "forward", "backward"
    its = [Task(1, kind, batch) for kind in kinds for batch in range(4)]
    placed: Any = {"segments": segments, "orders": [its, mine]}
    found = trained(zoo.branches, optimizers.Adam, **placed)
    assert max(found.weights, found.losses) < 1e-5


@pytest.mark.full
def test_half_precision_scales_its_loss_on_all_devices_alike() -> None:
    def optimizer() -> Any:
        inner = optimizers.Adam(1e-3, global_clipnorm=0.5)
        # The first steps overflow, and then no device may update anything.
        return optimizers.LossScaleOptimizer(inner, initial_scale=2.0**40)

    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        found = trained(zoo.regularised, optimizer, stages=2)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert max(found.weights, found.slots, found.losses) < 1e-5


def test_each_update_is_computed_where_its_variables_are() -> None:
    from gpubalance.engine.pipeline.cut_model import Update

    names = {0: "CPU:3", 1: "CPU:5"}
    variables = {}
    for number, name in names.items():
        with tf.device(name):
            positive = keras.constraints.NonNeg()
            variables[number] = [keras.Variable(tf.ones((2, 3)), constraint=positive)]
    inner = optimizers.AdamW(global_clipnorm=0.1, use_ema=True)
    optimizer = optimizers.LossScaleOptimizer(inner)
    optimizer.build([*variables[0], *variables[1]])
    update = Update(optimizer, [*names.values()], variables)
    update.begin()
    grads, told = {}, []
    with crossings() as found:
        for number, name in names.items():
            with tf.device(name):
                grads[number] = [tf.ones((2, 3))]
                update.trace(number, grads[number])
                told.append(update.summary(number, grads[number]))
        for number, name in names.items():
            with tf.device(name):
                update.apply(number, grads[number], told)
    assert not [one for one in found if one.sender in names.values()]


def test_an_operation_that_a_device_has_not_got_runs_elsewhere() -> None:
    """A GPU, for example, has no operations on text.

    Here there is no such device at all, which TensorFlow takes in the same way.
    """
    from gpubalance.engine.pipeline.traced import TracedFunction

    def add(number: Any) -> Any:
        with tf.device("/GPU:7"):
            return number + 1

    traced = TracedFunction(add, tf.TensorSpec((), tf.float32))
    assert float(traced(tf.constant(1.0))) == 2


def test_a_device_that_hangs_is_named_with_its_task() -> None:
    from gpubalance.engine.failures import TaskFailedError

    goes_on = threading.Event()
    goes_on.set()

    @keras.saving.register_keras_serializable()
    class Waiting(layers.Layer):
        def call(self, given: Any) -> Any:
            waited = tf.numpy_function(wait, [], tf.float32)
            return given + tf.reshape(waited, ())

    def wait() -> Any:
        return np.float32(not goes_on.wait(60))

    def waiting() -> Any:
        body = [keras.Input((3,)), layers.Dense(2), Waiting(), layers.Dense(1)]
        return keras.Sequential(body)

    found = trained(waiting, optimizers.SGD, steps=1)
    goes_on.clear()
    where = "the forward pass of micro-batch 0 in blocks 1 to 1 of the model's layers on device 1"
    with refused(where, TaskFailedError) as told:
        found.again(patience_s=2.0)
    goes_on.set()
    assert told.value.__cause__ is None


def test_what_can_not_be_cut_is_refused_with_its_reason() -> None:
    from gpubalance.engine.pipeline.blocks import Calls, blocks_of

    again = layers.Dense(6, name="again")
    given = keras.Input((6,))
    with pytest.raises(Refused, match=r"can't be cut: every cut .* such as again"):
        blocks_of(Calls(keras.Model(given, again(layers.ReLU()(again(given))))))
    calls = Calls(zoo.shared())
    with pytest.raises(BadInput, match="the layer again has calls on both sides"):
        blocks_of(calls, [calls.calls[1].name])
    with pytest.raises(BadInput, match="--cuts nowhere"):
        blocks_of(calls, ["nowhere"])
    branches = Calls(zoo.branches())
    cuts = [branches.calls[number].name for number in (4, 2)]
    assert blocks_of(branches, cuts).starts == (0, 2, 4)


def test_what_keras_does_not_divide_by_samples_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gpubalance.engine.pipeline.micro_batches import refuse_model

    regularised = layers.Dense(2, activity_regularizer="l2", name="regularised")
    model = keras.Sequential([keras.Input((4,)), regularised])
    monkeypatch.setattr("keras.__version__", "3.14.0")
    refuse_model(model)
    monkeypatch.setattr("keras.__version__", "3.13.2")
    with refused("Keras 3.13.2 sums the activity regulariser of the layer regularised"):
        refuse_model(model)
