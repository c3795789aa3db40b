"""A model cut into segments on several devices computes what one would, wherever it is cut."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpubalance.errors import BadInput, Refused
from gpubalance.planning.pipeline.problem import Segment
from gpubalance.planning.pipeline.timeline import Task
from tests.engine import zoo
from tests.engine.pipelines import Trained, cut_outputs, graph_of, trained
from tests.support.late import keras, layers, optimizers, tf


@pytest.fixture(scope="module")
def regularised() -> Trained:
    """A model with batch normalisation, dropout and regularisers, trained on three devices.

    Its optimizer has many options.
    """

    def slower(optimizer: Any) -> None:  # as a callback would
        optimizer.learning_rate = float(optimizer.learning_rate.numpy()) * 0.9

    def adamw() -> Any:
        options = {
            "weight_decay": 0.1,
            "global_clipnorm": 0.05,
            "use_ema": True,
            "ema_momentum": 0.9,
        }
        return optimizers.AdamW(0.01, **options)

    return trained(zoo.regularised, adamw, between=slower)


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (zoo.masked, 5),
        (zoo.nested, 5),
        (zoo.several, 6),
        (zoo.shared, 2),
        (zoo.branches, 5),
    ],
)
def test_wherever_it_is_cut_a_model_gives_the_same(make: Any, count: int) -> None:
    model = make()
    calls, blocks, samples = graph_of(model)
    inputs, _ = samples.make(3)
    expected = keras.tree.flatten(model(inputs, training=False))
    assert len(blocks.starts[1:]) == count
    for cut in blocks.starts[1:]:
        for mine, its in zip(
            cut_outputs(model, calls, (0, cut), inputs), expected, strict=True
        ):
            np.testing.assert_array_equal(mine, its)


def test_regularised_layers_train_as_on_one_device(regularised: Trained) -> None:
    assert max(regularised.weights, regularised.slots, regularised.losses) < 1e-5


@pytest.mark.parametrize(
    ("make", "kind", "options"),
    [
        pytest.param(
            zoo.masked,
            "Adam",
            {"global_clipnorm": 1e-2},
            id="masks and rows of an embedding",
            marks=pytest.mark.full,
        ),
        pytest.param(zoo.nested, "SGD", {"momentum": 0.9}, id="models in a model"),
        pytest.param(
            zoo.several,
            "SGD",
            {"clipnorm": 1e-2},
            id="several inputs and outputs",
            marks=pytest.mark.full,
        ),
        pytest.param(
            zoo.stopped,
            "AdamW",
            {"weight_decay": 0.1},
            id="tensors that no gradient comes back for",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_they_train_as_on_one_device(make: Any, kind: str, options: Any) -> None:
    found = trained(make, lambda: getattr(keras.optimizers, kind)(0.01, **options))
    assert max(found.weights, found.slots, found.losses) < 1e-5


@pytest.mark.full
def test_the_same_operations_give_the_same_weights_to_the_last_bit() -> None:
    """This holds where TensorFlow fuses no operations.

    It fuses in other ways where a model is cut, and a deep model makes much of that.
    """

    def deep() -> Any:
        of = keras.layers
        body = given = keras.Input((8, 8, 3))
        for number in range(3):
            body = of.ReLU(6.0)(
                of.BatchNormalization()(
                    of.Conv2D(8, 3, padding="same", use_bias=False)(body)
                )
            )
            body = (
                of.Add()([body, of.DepthwiseConv2D(3, padding="same")(body)])
                if number
                else body
            )
        return keras.Model(
            given, of.Dense(3, "softmax")(of.GlobalAveragePooling2D()(body))
        )

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        found = trained(
            deep, lambda: optimizers.Adam(0.01, global_clipnorm=0.1), micro_batches=3
        )
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    assert max(found.weights, found.slots, found.losses) == 0


def test_a_branch_on_a_device_of_its_own_trains_as_on_one() -> None:
    """A branch on a device and the rest around it on another train as on one."""
    segments = [Segment(0, 1, 1), Segment(2, 3, 0), Segment(4, 5, 1)]
    mine = [Task(number, "forward", batch) for batch in range(4) for number in (0, 2)]
    mine += [Task(number, "backward", batch) for batch in range(4) for number in (2, 0)]
    its = [
        Task(1, kind, batch) for kind in ("forward", "backward") for batch in range(4)
    ]
    found = trained(
        zoo.branches, optimizers.Adam, segments=segments, orders=[its, mine]
    )
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
    from tensorflow.python.eager import context

    from gpubalance.engine.pipeline.update import Update

    names = {0: "CPU:3", 1: "CPU:5"}
    variables = {}
    for number, name in names.items():
        with tf.device(name):
            variables[number] = [
                keras.Variable(tf.ones((2, 3)), constraint=keras.constraints.NonNeg())
            ]
    inner = optimizers.AdamW(global_clipnorm=0.1, use_ema=True)
    optimizer = optimizers.LossScaleOptimizer(inner)
    optimizer.build([*variables[0], *variables[1]])
    update = Update(optimizer, [*names.values()], variables)
    update.begin()
    context.enable_run_metadata()
    try:
        grads = {}
        told = []
        for number, name in names.items():
            with tf.device(name):
                grads[number] = [tf.ones((2, 3))]
                update.trace(number, grads[number])
                told.append(update.summary(number, grads[number]))
        for number, name in names.items():
            with tf.device(name):
                update.apply(number, grads[number], told)
        functions = context.export_run_metadata().function_graphs
    finally:
        context.disable_run_metadata()
    devices = []  # of each function that updates
    for function in functions:
        nodes = [node for graph in function.partition_graphs for node in graph.node]
        if any("Assign" in node.op for node in nodes):
            devices.append({node.device[-5:] for node in nodes})
    assert devices == [{name} for name in names.values()]


def test_an_operation_that_a_device_has_not_got_runs_elsewhere() -> None:
    """A GPU, for example, has no operations on text.

    Here there is no such device at all, which TensorFlow takes in the same way.
    """
    from gpubalance.engine.pipeline.traced import TracedFunction

    def add(number: Any) -> Any:
        with tf.device("/GPU:7"):
            return number + 1

    assert (
        float(TracedFunction(add, tf.TensorSpec((), tf.float32))(tf.constant(1.0))) == 2
    )


@pytest.mark.full
def test_a_moved_model_is_as_before(regularised: Trained, tmp_path: Path) -> None:
    model = regularised.model
    assert {variable.value.device[-5:] for variable in model.variables} == {
        "CPU:0",
        "CPU:1",
        "CPU:2",
    }
    model.save(tmp_path / "moved.keras")
    given = np.ones((2, 6), np.float32)
    loaded = keras.saving.load_model(tmp_path / "moved.keras")
    np.testing.assert_allclose(
        loaded.predict(given, verbose=0), model.predict(given, verbose=0), atol=1e-7
    )


def test_a_device_that_hangs_is_named_with_its_task() -> None:
    from gpubalance.engine.failures import TaskFailedError

    goes_on = threading.Event()
    goes_on.set()

    @keras.saving.register_keras_serializable()
    class Waiting(layers.Layer):
        def call(self, given: Any) -> Any:
            waited = tf.numpy_function(
                lambda: np.float32(not goes_on.wait(60)), [], tf.float32
            )
            return given + tf.reshape(waited, ())

    def waiting() -> Any:
        return keras.Sequential(
            [keras.Input((3,)), layers.Dense(2), Waiting(), layers.Dense(1)]
        )

    found = trained(waiting, optimizers.SGD, steps=1)
    goes_on.clear()
    with pytest.raises(
        TaskFailedError,
        match="the forward pass of micro-batch 0 in blocks 1 to 1 on device 1",
    ) as told:
        found.again(patience_s=2.0)
    goes_on.set()
    assert told.value.__cause__ is None


def test_what_can_not_be_cut_is_refused_with_its_reason() -> None:
    from gpubalance.engine.pipeline.blocks import blocks_of
    from gpubalance.engine.pipeline.calls import Calls

    again = layers.Dense(6, name="again")
    given = keras.Input((6,))
    with pytest.raises(Refused, match="can't be cut: the layer again"):
        blocks_of(Calls(keras.Model(given, again(layers.ReLU()(again(given))))))
    calls = Calls(zoo.shared())
    with pytest.raises(BadInput, match="the layer again has calls on both sides"):
        blocks_of(calls, [calls.calls[1].name])
    with pytest.raises(BadInput, match="--cuts nowhere"):
        blocks_of(calls, ["nowhere"])
    branches = Calls(zoo.branches())
    assert blocks_of(
        branches, [branches.calls[number].name for number in (4, 2)]
    ).starts == (0, 2, 4)
