"""A user's own model, its layers on several devices: Keras' loop gives what it gives on one device."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpubalance
from gpubalance.errors import BadInput, OutOfMemory, PlanMismatch
from gpubalance.results.layers import Layers, StepTask
from gpubalance.settings.device import Device, DeviceProfile, JointProfile
from gpubalance.training.load import load_layers
from gpubalance.training.pipelined import Pipelined
from tests.engine.pipelines import in_stages, orders_of
from tests.training.cases import positions, words

_MICRO_BATCH, _MICRO_BATCHES = 8, 4
_SAMPLES = 72  # of an epoch: its last batch has one micro-batch
_RESULT = Path(__file__).parents[1] / "render" / "data" / "pair-layers.json"


@pytest.fixture(scope="module")
def keras(tensorflow: Any) -> Any:
    del tensorflow
    import keras

    return keras


def two_in_two_out(*, loss: Any = "sparse_categorical_crossentropy", width: int = 8) -> Any:
    """A model with everything that adds to a loss, and metrics with and without sample weights."""
    import keras
    from keras import layers, regularizers

    left, right = keras.Input((6,), name="left"), keras.Input((4,), name="right")
    own = {"kernel_regularizer": regularizers.L2(1e-2), "activity_regularizer": regularizers.L2(1e-2)}
    first = layers.Dense(width, "relu", **own)(left)
    size = layers.Dense(1, name="size")(first)
    both = layers.Concatenate()([first, layers.Dense(4, "tanh")(right)])
    kind = layers.Dense(3, "softmax", name="kind")(layers.Dense(8, "relu")(both))
    model = keras.Model({"left": left, "right": right}, {"kind": kind, "size": size})
    model.compile(
        keras.optimizers.Adam(1e-2, global_clipnorm=0.5),
        {"kind": loss, "size": "mse"},
        loss_weights={"kind": 1.0, "size": 0.3},
        metrics={"size": ["mae"]},
        weighted_metrics={"kind": ["accuracy"]},
    )
    return model


def cut(model: Any, stages: int = 2) -> Layers:
    """The result that `gpubalance layers` would write for this model on plain CPU devices."""
    from gpubalance.engine.pipeline.blocks import blocks_of
    from gpubalance.engine.pipeline.calls import Calls

    graph = blocks_of(Calls(model)).graph
    segments = in_stages(len(graph.blocks), stages)
    like = Layers.model_validate_json(_RESULT.read_text())
    tasks = [
        StepTask(**task._asdict(), device=device, sent_s=0, ready_s=0, start_s=place, end_s=place + 1)
        for device, order in enumerate(orders_of(segments, graph, _MICRO_BATCHES))
        for place, task in enumerate(order)
    ]
    block = like.blocks[0]
    update: dict[str, Any] = {
        "devices": tuple(
            Device(index=i, uuid=f"cpu-{i}", name="CPU", memory_bytes=None, simulated=True) for i in range(stages)
        ),
        "blocks": tuple(
            block.model_copy(update={"calls": one.calls, "weights_bytes": one.weights_bytes}) for one in graph.blocks
        ),
        "stages": tuple(
            like.stages[0].model_copy(update={"device": one.device, "segments": ((one.first, one.last),)})
            for one in segments
        ),
        "timeline": like.timeline.model_copy(update={"tasks": tuple(tasks), "updates": ()}),
        "micro_batch": _MICRO_BATCH,
        "micro_batches": _MICRO_BATCHES,
        "global_batch": _MICRO_BATCH * _MICRO_BATCHES,
    }
    return like.model_copy(update=update)


def samples() -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    inputs = {"left": random.random((_SAMPLES, 6), np.float32), "right": random.random((_SAMPLES, 4), np.float32)}
    labels = {"kind": random.integers(0, 3, _SAMPLES), "size": random.random((_SAMPLES, 1), np.float32)}
    return inputs, labels, {name: random.random(_SAMPLES, np.float32) for name in labels}


def layers_for(model: Any, stages: int = 2) -> Pipelined:
    with pytest.warns(UserWarning, match="simulated devices"):
        return load_layers(cut(model, stages))


def beside(built: Any, stages: int = 2) -> tuple[Pipelined, Any, Any]:
    """Stages, a model in them, and the same model on one device."""
    import keras

    made = []
    layers = layers_for(built(), stages)
    for scope in (layers.scope(), nullcontext()):
        keras.utils.set_random_seed(2)
        with scope:
            made.append(built())
    return layers, made[0], made[1]


def largest(one: Any, other: Any) -> float:
    pairs = zip(one, other, strict=True)
    return max(float(np.abs(np.subtract(mine, its)).max()) for mine, its in pairs)


def test_fit_evaluate_and_predict_give_what_one_device_gives(keras: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    inputs, labels, weights = samples()
    layers, model, alone = beside(two_in_two_out, 3)
    options = {"epochs": 2, "shuffle": False, "verbose": 0, "sample_weight": weights}
    mine = layers.fit(model, inputs, labels, validation_data=(inputs, labels), **options).history
    its = alone.fit(inputs, labels, batch_size=32, validation_data=(inputs, labels), **options).history
    assert mine.keys() == its.keys()
    assert {variable.value.device[-5:] for variable in model.trainable_variables} == {"CPU:0", "CPU:1", "CPU:2"}
    assert largest(model.get_weights(), alone.get_weights()) < 1e-6
    # Keras' own means of each output's loss are of batches, not of samples, where these differ in size.
    logged = [name for name in its if not name.endswith(("kind_loss", "size_loss"))]
    assert largest([mine[name] for name in logged], [its[name] for name in logged]) < 1e-6
    found = layers.evaluate(model, inputs, labels, return_dict=True, verbose=0)
    expected = alone.evaluate(inputs, labels, batch_size=_SAMPLES, return_dict=True, verbose=0)
    assert largest([found[name] for name in expected], expected.values()) < 1e-6
    outputs = layers.predict(model, inputs, verbose=0)
    assert largest(outputs.values(), alone.predict(inputs, verbose=0).values()) < 1e-6

    # Loaded with its optimizer, it goes on where it was. Of batches that are alike all of Keras' means are of samples.
    model.save(tmp_path / "model.keras")
    with layers.scope():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    alike = tf.data.Dataset.from_tensor_slices((inputs, labels)).take(2 * 32).batch(32)
    its = alone.fit(alike, verbose=0).history
    for one in (model, loaded):
        mine = layers.fit(one, alike, verbose=0).history
        assert largest([mine[name] for name in its], its.values()) < 1e-5
    assert largest(model.get_weights(), loaded.get_weights()) == 0


def test_a_loss_that_is_a_sum_stays_one_and_what_is_excluded_from_weight_decay_stays_so(keras: Any) -> None:
    def built() -> Any:
        given = keras.Input((4,), name="right"), keras.Input((6,), name="left")
        both = keras.layers.Concatenate()([keras.layers.Dense(4, "relu")(one) for one in given])
        model = keras.Model(list(given), keras.layers.Dense(3, "softmax")(both))
        optimizer = keras.optimizers.AdamW(1e-2, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_list=[layer.kernel for layer in model.layers if layer.weights][:2])
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(reduction="sum"))
        return model

    inputs, labels = {**samples()[0], "unused": np.zeros((_SAMPLES, 1))}, samples()[1]["kind"]
    layers, model, alone = beside(built)
    mine = layers.fit(model, inputs, labels, shuffle=False, verbose=0).history
    its = alone.fit(inputs, labels, batch_size=32, shuffle=False, verbose=0).history
    assert largest(model.get_weights(), alone.get_weights()) < 1e-6
    assert mine["loss"] == pytest.approx(its["loss"])


def test_rows_of_positions_and_words_give_the_optimizer_what_one_device_gives(keras: Any) -> None:
    del keras
    layers, model, alone = beside(positions)
    x, y = words(_SAMPLES)
    layers.fit(model, x, y, epochs=2, shuffle=False, verbose=0)
    alone.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    assert largest(model.get_weights(), alone.get_weights()) < 1e-6


def test_what_a_device_does_not_hold_names_it_and_what_it_was_at(keras: Any) -> None:
    del keras
    inputs, labels, _ = samples()
    profile = DeviceProfile(name="small", alpha_s=0, beta_s=0, memory=1000, memory_per_sample=100)
    result = cut(two_in_two_out())
    devices = tuple(device.model_copy(update={"profile": profile}) for device in result.devices)
    layers = Pipelined(result, devices, JointProfile())
    with layers.scope():
        model = two_in_two_out()
    with pytest.raises(OutOfMemory, match=r"GPU:\d ran out of memory in the forward pass of micro-batch 1") as told:
        layers.fit(model, inputs, labels, verbose=0)
    assert ": it held 9" in told.value.message
    assert told.value.remedy.endswith("leaves more memory free, and with a smaller --micro-batch its parts are smaller")


def test_a_weight_is_never_used_by_another_device_unseen(keras: Any) -> None:
    layers = keras.layers

    def three(*, again: bool) -> Any:
        given = keras.Input((6,))
        each = [layers.Dense(6)] * 3 if again else [layers.Dense(6) for _ in range(3)]
        return keras.Model(given, each[2](each[1](each[0](given))))

    inputs = samples()[0]["left"]
    same = three(again=True)
    same.compile("sgd", "mse")
    with pytest.raises(PlanMismatch, match="other layers than"):
        layers_for(three(again=False), 3).fit(same, inputs, inputs)
    first = layers.Dense(6)
    own = layers.Lambda(lambda one: one @ keras.ops.transpose(first.kernel))
    tied = keras.Sequential([keras.Input((6,)), first, layers.ReLU(), own])
    tied.compile("sgd", "mse")
    with pytest.raises(BadInput, match="/kernel, which another device has"):
        layers_for(tied).fit(tied, inputs, inputs, verbose=0)


def test_what_layers_can_not_train_is_refused_with_its_reason(keras: Any) -> None:
    of = keras.layers

    class Own(keras.Model):  # type: ignore[misc]
        def call(self, given: Any) -> Any:
            return given

    class Stepping(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    def loss(name: str) -> Any:
        return keras.losses.SparseCategoricalCrossentropy(reduction=name)

    ignoring = keras.losses.SparseCategoricalCrossentropy(ignore_class=1)
    layers, dense = layers_for(two_in_two_out()), [keras.Input((6,)), of.Dense(3)]
    masked = [keras.Input((6,)), of.Embedding(9, 4, mask_zero=True), of.LSTM(4, return_sequences=True), of.Dense(3)]
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (Own(), {"loss": "mse"}, "is of the class Own, with code of its own instead of a graph of layers"),
        (Stepping(dense), {"loss": "mse"}, "has a train_step of its own, which runs all of its layers at once"),
        (keras.Sequential(dense), {"loss": "mse", "jit_compile": True}, "jit_compile=True, which is for one device"),
        (keras.Sequential(masked), {"loss": loss("sum_over_batch_size")}, "divides by what a mask leaves of a batch"),
        (keras.Sequential(dense), {"loss": loss("none")}, "divides by other than samples"),
        (keras.Sequential(dense), {"loss": ignoring}, "divides by what ignore_class leaves of a batch"),
        (keras.Sequential(dense), {"loss": None}, "is compiled without a loss"),
    ]
    inputs, labels, _ = samples()
    for model, compiled, message in cases:
        with layers.scope():
            model.compile("sgd", **compiled)
        with pytest.raises(BadInput, match=rf"{message}(.|\n)*→"):
            layers.fit(model, inputs["left"], labels["kind"], verbose=0)


def test_a_loss_that_is_no_mean_over_samples_is_told(keras: Any) -> None:
    """By the batch's first samples, as in a split: its micro-batches would be something else."""
    ops = keras.ops

    def summed(labels: Any, outputs: Any) -> Any:
        return ops.sum(ops.square(labels - outputs))

    def meant(labels: Any, outputs: Any) -> Any:
        return ops.mean(ops.square(labels - outputs))

    given, weights = samples()[0]["left"], np.ones(_SAMPLES, np.float32)
    layers = layers_for(keras.Sequential([keras.Input((6,)), keras.layers.Dense(6), keras.layers.Dense(6, "sigmoid")]))

    class Adding(keras.layers.Dense):  # type: ignore[misc]
        def call(self, given: Any) -> Any:
            self.add_loss(ops.sum(ops.square(given)))
            return super().call(given)

    def fit(loss: Any, *, adding: bool = False, **options: Any) -> Any:
        keras.utils.set_random_seed(2)
        with layers.scope():
            first = Adding(6, name="adding") if adding else keras.layers.Dense(6)
            model = keras.Sequential([keras.Input((6,)), first, keras.layers.Dense(6, "sigmoid")])
            model.compile("sgd", loss)
        layers.fit(model, given, given, shuffle=False, verbose=0, **options)
        return model

    with pytest.raises(BadInput, match=r"\(summed\) sums over the batch and returns one number(.|\n)*→ return a value"):
        fit(summed)
    with pytest.warns(UserWarning, match=r"\(Dice\) is not a mean over samples"):
        fit(keras.losses.Dice())
    with pytest.raises(BadInput, match=r"own layers: adding\) sums over the batch(.|\n)*→ add_loss"):
        fit("mse", adding=True)
    assert largest(fit(meant).get_weights(), fit("mse").get_weights()) < 1e-6
    with pytest.raises(BadInput, match="divides by the sample weights of a batch"):
        fit(keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"), sample_weight=weights)


def test_what_was_not_cut_is_refused(keras: Any, tmp_path: Path) -> None:
    inputs, labels, _ = samples()
    result = cut(two_in_two_out())
    file = tmp_path / "layers.json"
    file.write_text(result.model_dump_json())
    with pytest.raises(PlanMismatch, match="not here") as told:
        gpubalance.load_layers(file, simulate=2)
    assert told.value.exit_code == 7
    layers = layers_for(two_in_two_out())
    with layers.scope():
        wider, model = two_in_two_out(width=9), two_in_two_out()
        mixed = two_in_two_out(loss=keras.losses.SparseCategoricalCrossentropy(reduction="sum"))
    with pytest.raises(PlanMismatch, match="other layers than"):
        layers.fit(wider, inputs, labels)
    with pytest.raises(BadInput, match="a batch of 64, where the layers were cut for 32"):
        layers.fit(model, inputs, labels, batch_size=64)
    with pytest.raises(BadInput, match="samples for some outputs and not for others"):
        layers.fit(mixed, inputs, labels, verbose=0)
