"""With a model's layers on several devices, Keras' loop gives what it gives on one.

The model is a user's own.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpubalance
from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import BadInput, OutOfMemory, PlanMismatch
from gpubalance.results.layers import Layers, StepTask
from gpubalance.settings.device import DeviceProfile, JointProfile
from gpubalance.training.split import Pipelined, load_layers
from tests.engine.pipelines import in_stages, orders_of
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.late import keras, losses, ops, optimizers, tf
from tests.support.late import layers as of
from tests.support.told import refused, warned
from tests.training.cases import apart, largest
from tests.training.models import compiled, dense, subclassed, two_in_two_out
from tests.training.own_code import traced
from tests.training.samples import numbers, of_two, weighted, words
from tests.training.told import keeping

_MICRO_BATCH = 8
_MICRO_BATCHES = 4
_SAMPLES = 72  # of an epoch: its last batch has one micro-batch
_RESULT = Path(__file__).parents[1] / "render" / "data" / "pair-layers.json"


def cut(model: Any, stages: int = 2) -> Layers:
    """The result that `gpubalance layers` would write for this model on plain CPU devices."""
    from gpubalance.engine.pipeline.blocks import Calls, blocks_of

    graph = blocks_of(Calls(model)).graph
    of_pair = Layers.model_validate_json(_RESULT.read_text())
    segments = in_stages(len(graph.blocks), stages)
    tasks = []
    for device, order in enumerate(orders_of(segments, graph, _MICRO_BATCHES)):
        for start, task in enumerate(order):
            own = {"device": device, "start_s": start, "end_s": start + 1}
            tasks.append(StepTask(**task._asdict(), sent_s=0, ready_s=0, **own))
    blocks, cut_into = [], []
    for one in graph.blocks:
        own = {"calls": one.calls, "weights_bytes": one.weights_bytes}
        blocks.append(altered(of_pair.blocks[0], **own))
    for segment in segments:
        of_stage: Any = {"segments": ((segment.first, segment.last),)}
        of_stage["device"] = segment.device
        cut_into.append(altered(of_pair.stages[0], **of_stage))
    return altered(
        of_pair,
        devices=simulated_devices(str(stages))[0],
        blocks=tuple(blocks),
        stages=tuple(cut_into),
        timeline=altered(of_pair.timeline, tasks=tuple(tasks), updates=()),
        micro_batch=_MICRO_BATCH,
        micro_batches=_MICRO_BATCHES,
        global_batch=_MICRO_BATCH * _MICRO_BATCHES,
    )


def of_all_kinds() -> Any:
    """A model with everything that adds to a loss, its gradients clipped together."""
    regularised: Any = {"kernel_regularizer": "l2", "activity_regularizer": "l2"}
    return two_in_two_out(optimizers.Adam(1e-2, global_clipnorm=0.5), **regularised)


def layers_for(model: Any, stages: int = 2) -> Pipelined:
    with pytest.warns(UserWarning, match="simulated devices"):
        return load_layers(cut(model, stages))


def beside(built: Any, stages: int = 2) -> tuple[Pipelined, Any, Any]:
    """Stages, a model in them, and the same model on one device."""
    made = []
    layers = layers_for(built(), stages)
    for scope in (layers.scope(), nullcontext()):
        keras.utils.set_random_seed(2)
        with scope:
            made.append(built())
    return layers, made[0], made[1]


@pytest.mark.full
def test_fit_evaluate_and_predict_give_what_one_device_gives(tmp_path: Path) -> None:
    inputs, labels = of_two(_SAMPLES)
    weights = dict(zip(labels, weighted(2 * _SAMPLES)[2].reshape(2, -1), strict=True))
    layers, model, alone = beside(of_all_kinds, 3)
    options = {"epochs": 2, "shuffle": False, "verbose": 0, "sample_weight": weights}
    options["validation_data"] = given = inputs, labels
    mine = layers.fit(model, *given, **options).history
    its = alone.fit(*given, 32, **options).history
    assert mine.keys() == its.keys()
    where = {variable.value.device[-5:] for variable in model.trainable_variables}
    assert where == {"CPU:0", "CPU:1", "CPU:2"}
    assert apart(model, alone) < 1e-6
    # Where batches differ in size, Keras' own means of outputs' losses are of them, not of samples.
    logged = [name for name in its if not name.endswith(("kind_loss", "size_loss"))]
    assert largest([mine[of] for of in logged], [its[of] for of in logged]) < 1e-6
    options = {"return_dict": True, "verbose": 0}
    found = layers.evaluate(model, *given, **options)
    expected = alone.evaluate(*given, _SAMPLES, **options)
    assert largest([found[name] for name in expected], expected.values()) < 1e-6
    outputs = layers.predict(model, inputs, verbose=0)
    assert largest(outputs.values(), alone.predict(inputs, verbose=0).values()) < 1e-6
    # Batches that are only predicted may be larger than those that are trained on.
    larger = tf.data.Dataset.from_tensor_slices(inputs).batch(40)
    outputs = layers.predict(model, larger, steps=1, verbose=0)
    expected = alone.predict(larger, steps=1, verbose=0)
    assert largest(outputs.values(), expected.values()) < 1e-6

    # Loaded with its optimizer, it goes on where it was.
    # With batches that are alike, all of Keras' means are of samples.
    model.save(tmp_path / "model.keras")
    with layers.scope():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    alike = tf.data.Dataset.from_tensor_slices((inputs, labels)).take(2 * 32).batch(32)
    its = alone.fit(alike, verbose=0).history
    for one in (model, loaded):
        mine = layers.fit(one, alike, verbose=0).history
        assert largest([mine[name] for name in its], its.values()) < 1e-5
    assert apart(model, loaded) == 0


def test_outputs_without_sample_weights_count_as_on_one_device() -> None:
    inputs, labels = of_two(_SAMPLES)
    weights = {"kind": None, "size": weighted(_SAMPLES)[2]}
    layers, model, alone = beside(two_in_two_out)
    options = {"sample_weight": weights, "shuffle": False, "verbose": 0}
    mine = layers.fit(model, inputs, labels, **options).history
    its = alone.fit(inputs, labels, batch_size=32, **options).history
    assert apart(model, alone) < 1e-6
    assert mine["loss"] == pytest.approx(its["loss"])
    with refused(r'y\["size"\] is missing'):
        layers.fit(model, inputs, labels | {"size": None}, verbose=0)


def test_keras_and_each_cut_go_on_from_the_same_weights() -> None:
    """Whatever was traced before the weights were moved, by Keras itself and by another cut."""

    def built() -> Any:
        return compiled([*dense()[:-1], of.Dense(4), of.Dense(3, "softmax")])

    given = numbers(_SAMPLES)
    two, three = (layers_for(built(), stages) for stages in (2, 3))
    with three.scope():
        model = built()
    encoder = keras.Model(model.inputs[0], model.layers[-2].output)
    trainers = (model.fit, *(partial(cut.fit, model) for cut in (two, three)))
    for trains in (model.evaluate, *trainers):
        trains(*given, verbose=0)
        encoded = encoder.predict(given[0], verbose=0)
        assert largest(encoded, np.array(encoder(given[0]))) < 1e-6
        found = [model.evaluate(*given, verbose=0)]
        found += [cut.evaluate(model, *given, verbose=0) for cut in (two, three)]
        assert found == pytest.approx(found[:1] * 3)


def test_models_that_share_layers_follow_the_weights() -> None:
    """A feature extractor, and a model around the trained one, that predicted before the cut."""
    layers = layers_for(compiled(dense()))
    with layers.scope():
        model = compiled(dense())
        extractor = keras.Model(model.inputs, model.layers[-1].output)
        given = keras.Input((6,))
        around = keras.Model(given, 2 * model(given))
        other = compiled(dense())
    x, y = numbers(_SAMPLES)
    for one in (extractor, around, other):
        one.predict(x, verbose=0)
    layers.fit(model, x, y, verbose=0)
    now = model(x).numpy()
    assert largest([extractor.predict(x, verbose=0)], [now]) < 1e-6
    assert largest([around.predict(x, verbose=0)], [2 * now]) < 1e-6
    assert other.predict_function  # it shares none


def test_a_layer_frozen_after_evaluate_needs_a_compile() -> None:
    """Evaluate has cut the model, and so has fixed what fit trains."""
    inputs, labels = of_two(_SAMPLES)
    layers, model, _ = beside(two_in_two_out)
    layers.evaluate(model, inputs, labels, verbose=0)
    frozen = model.get_layer("kind")
    frozen.trainable = False
    before = frozen.get_weights()
    changed = "weight kind/kernel was frozen or unfrozen after"
    with refused(rf"{changed}(.|\n)*→ compile the model again"):
        layers.fit(model, inputs, labels, verbose=0)
    with layers.scope():
        model.compile("sgd", {"kind": "sparse_categorical_crossentropy", "size": "mse"})
    layers.fit(model, inputs, labels, verbose=0)
    assert largest(frozen.get_weights(), before) == 0

    def unfreeze(*_: Any) -> None:
        frozen.trainable = True
        model.make_train_function(force=True)

    unfreezes = keras.callbacks.LambdaCallback(on_epoch_end=unfreeze)
    options = {"epochs": 2, "verbose": 0, "callbacks": [unfreezes]}
    with refused(changed):
        layers.fit(model, inputs, labels, **options)


def test_predict_never_takes_samples_for_channels() -> None:
    """As Keras' add does where it knows that there are as many of them."""
    given = keras.Input((6,))
    hidden = of.Dense(_MICRO_BATCH)(given)
    model = keras.Model(given, hidden + ops.sum(hidden, axis=1, keepdims=True))
    layers, inputs = layers_for(compiled(model)), numbers(_SAMPLES)[0]
    outputs = layers.predict(model, inputs, verbose=0)
    assert largest(outputs, model.predict(inputs, verbose=0)) < 1e-5


def test_inputs_of_another_length_are_refused() -> None:
    """What is traced for five words would take the first five of nine."""

    def built() -> Any:
        return compiled([keras.Input((5, 4)), of.LSTM(6), of.Dense(3, "softmax")])

    layers, longer = layers_for(built()), np.ones((_SAMPLES, 9, 4), "float32")
    with layers.scope():
        model = built()
    for method, *labels in ((layers.predict,), (layers.fit, np.zeros(_SAMPLES))):
        with refused(r"^x does not fit the model \w+: expected shape=\(None, 5, 4\)"):
            method(model, longer, *labels, verbose=0)


def test_whole_numbers_of_a_lambda_go_to_another_device() -> None:
    """Keras takes what a Lambda gives for real numbers."""

    def built() -> Any:
        shift, embed = of.Lambda(lambda x: x + 1), of.Embedding(30, 4)
        body = [keras.Input((5,), dtype="int32"), shift, embed, of.Flatten()]
        return compiled([*body, of.Dense(3, "softmax")])

    layers, model, alone = beside(built, 3)
    options = {"shuffle": False, "verbose": 0}
    layers.fit(model, *words(_SAMPLES), **options)
    alone.fit(*words(_SAMPLES), 32, **options)
    assert apart(model, alone) < 1e-6


def test_a_loss_that_is_a_sum_stays_one() -> None:
    """A loss that is a sum stays one and what is excluded from weight decay stays so."""

    def built() -> Any:
        given = keras.Input((4,), name="right"), keras.Input((6,), name="left")
        both = of.Concatenate()([of.Dense(4, "relu")(one) for one in given])
        model = keras.Model(list(given), of.Dense(3, "softmax")(both))
        optimizer = optimizers.AdamW(1e-2, weight_decay=0.5)
        kernels = [layer.kernel for layer in model.layers if layer.weights]
        optimizer.exclude_from_weight_decay(var_list=kernels[:2])
        model.compile(optimizer, losses.SparseCategoricalCrossentropy(reduction="sum"))
        return model

    inputs = {**of_two(_SAMPLES)[0], "unused": np.zeros((_SAMPLES, 1))}
    labels = of_two(_SAMPLES)[1]["kind"]
    layers, model, alone = beside(built)
    mine = layers.fit(model, inputs, labels, shuffle=False, verbose=0).history
    its = alone.fit(inputs, labels, batch_size=32, shuffle=False, verbose=0).history
    assert apart(model, alone) < 1e-6
    assert mine["loss"] == pytest.approx(its["loss"])


def test_a_device_without_a_stage_is_not_taken() -> None:
    inputs, labels = of_two(_SAMPLES)
    result = cut(two_in_two_out())
    gone = altered(result.devices[0], index=2, uuid="gone")
    devices = (gone, *result.devices)
    stages = [altered(stage, device=1 + stage.device) for stage in result.stages]
    tasks = [altered(one, device=1 + one.device) for one in result.timeline.tasks]
    timeline = altered(result.timeline, tasks=tuple(tasks))
    moved = altered(result, devices=devices, stages=tuple(stages), timeline=timeline)
    layers = Pipelined(moved, devices, JointProfile())
    with layers.scope():
        model = two_in_two_out()
    layers.fit(model, inputs, labels, verbose=0)
    assert [bool(name) for name in layers.names] == [False, True, True]


def test_what_a_device_does_not_hold_names_it_and_what_it_was_at() -> None:
    inputs, labels = of_two(_SAMPLES)
    memory = {"memory": 1000, "memory_per_sample": 100}
    profile = DeviceProfile(name="small", alpha_s=0, beta_s=0, **memory)
    result = cut(two_in_two_out())
    devices = tuple(altered(device, profile=profile) for device in result.devices)
    layers = Pipelined(result, devices, JointProfile())
    with layers.scope():
        model = two_in_two_out()
    where = r"GPU:\d ran out of memory in the forward pass of micro-batch 1"
    with refused(where, OutOfMemory) as told:
        layers.fit(model, inputs, labels, verbose=0)
    assert ": it held 9" in told.value.message
    smaller = "a smaller --micro-batch needs less"
    assert told.value.remedy.endswith(f"keeps more memory free; {smaller}")


def test_what_has_no_room_for_its_weights_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gpubalance.engine import keras_patches

    inputs, labels = of_two(_SAMPLES)
    layers = layers_for(two_in_two_out())
    with layers.scope():
        model = two_in_two_out()

    def full(*_: Any) -> None:
        text = f"OOM when allocating tensor on /device:{layers.names[1]} by allocator"
        raise tf.errors.ResourceExhaustedError(None, None, text)

    monkeypatch.setattr(keras_patches, "move", full)
    where = "CPU:1 ran out of memory in taking its stage's weights"
    with refused(rf"{where}(.|\n)*→ cut the model again", OutOfMemory):
        layers.fit(model, inputs, labels, verbose=0)


def test_a_weight_is_never_used_by_another_device_unseen() -> None:
    def three(*, again: bool) -> Any:
        given = keras.Input((6,))
        each = [of.Dense(6)] * 3 if again else [of.Dense(6) for _ in range(3)]
        return keras.Model(given, each[2](each[1](each[0](given))))

    inputs = numbers(_SAMPLES)[0]
    same = three(again=True)
    same.compile("sgd", "mse")
    with pytest.raises(PlanMismatch, match="other layers than"):
        layers_for(three(again=False), 3).fit(same, inputs, inputs)
    quantized = three(again=False)
    layers = layers_for(quantized)
    layers.predict(quantized, inputs, verbose=0)
    quantized.quantize("int8")
    with pytest.raises(PlanMismatch, match="other layers than"):
        layers.predict(quantized, inputs, verbose=0)
    first = of.Dense(6)
    own = of.Lambda(lambda one: one @ ops.transpose(first.kernel))
    tied = keras.Sequential([keras.Input((6,)), first, of.ReLU(), own])
    tied.compile("sgd", "mse")
    with pytest.raises(BadInput, match="/kernel, a weight on another device"):
        layers_for(tied).fit(tied, inputs, inputs, verbose=0)


def test_what_layers_can_not_train_is_refused_with_its_reason() -> None:
    def loss(name: str) -> Any:
        return losses.SparseCategoricalCrossentropy(reduction=name)

    ignoring = losses.SparseCategoricalCrossentropy(ignore_class=1)
    layers = layers_for(two_in_two_out())
    dense = [keras.Input((6,)), of.Dense(3)]
    body = [keras.Input((6,)), of.Embedding(9, 4, mask_zero=True)]
    body += [of.Dropout(0.1), of.Dense(3)]
    masked = keras.Sequential(body)
    own_code = "is of the class Subclassed, with code of its own instead of a graph"
    own_step = "has its own train_step, which runs all layers in one go"
    left = "divides by the number of values that ignore_class leaves"
    mask = "has a mask, which the output loses"
    mean, other = loss("sum_over_batch_size"), loss("none")
    cases: list[tuple[Any, Any, str]] = [
        (subclassed(), "mse", own_code),
        (traced(), "mse", own_step),
        (masked, mean, mask),
        (masked, loss("sum"), mask),
        (keras.Sequential(dense), other, "divides by something other than the number"),
        (keras.Sequential(dense), ignoring, left),
        (keras.Sequential(dense), None, "is compiled without a loss"),
        (keras.Sequential(dense), "mse", "jit_compile=True, which works on one device"),
    ]
    inputs, labels = of_two(_SAMPLES)
    for model, given, message in cases:
        with layers.scope():
            model.compile("sgd", given, jit_compile="jit_compile" in message)
        with refused(rf"{message}(.|\n)*→"):
            layers.fit(model, inputs["left"], labels["kind"], verbose=0)


def test_samples_that_do_not_fit_are_named_as_in_a_split() -> None:
    layers = layers_for(compiled(dense()))
    with layers.scope():
        model = compiled(dense())
    x, y = numbers(_SAMPLES)
    outside = np.where(np.arange(_SAMPLES) == 9, 7, y)
    narrow = r"does not fit the model sequential\w*: expected shape=\(None, 6\), found"
    label = r"the label \(y\) 7, but the model has 3 classes"

    def named(text: str, method: Any, *given: Any, **options: Any) -> None:
        with refused(text):
            method(model, *given, **options, verbose=0)

    for _ in range(2):  # while the step is traced, and later
        for method in (layers.fit, layers.evaluate):
            named(f"^x {narrow}", method, x[:, :2], y)
            named(label, method, x, outside)
            named("they are one-hot", method, x, np.eye(3)[y])
            named("are text", method, x, y.astype(str))
        named(f"^x {narrow}", layers.predict, x[:, :2])
        of_fit = {"validation_data": (x[:, :2], y)}
        named(f"^x of validation_data {narrow}", layers.fit, x, y, **of_fit)
        layers.evaluate(model, x, y, verbose=0)
        layers.predict(model, x, verbose=0)


def test_a_loss_that_is_no_mean_over_samples_is_told() -> None:
    """By the batch's first samples, as in a split: its micro-batches would be something else."""

    def summed(labels: Any, outputs: Any) -> Any:
        return ops.sum(ops.square(labels - outputs))

    def meant(labels: Any, outputs: Any) -> Any:
        return ops.mean(ops.square(labels - outputs))

    class Adding(of.Dense):
        def call(self, given: Any) -> Any:
            self.add_loss(ops.sum(ops.square(given)))
            return super().call(given)

    def made(first: Any = of.Dense) -> Any:
        body = [keras.Input((6,)), first(6, name="first"), of.Dense(6, "sigmoid")]
        return keras.Sequential(body)

    (given, _), weights = numbers(_SAMPLES), np.ones(_SAMPLES, np.float32)
    layers = layers_for(made())

    def fit(loss: Any, first: Any = of.Dense, **options: Any) -> Any:
        keras.utils.set_random_seed(2)
        with layers.scope():
            model = compiled(made(first), loss)
        layers.fit(model, given, given, shuffle=False, verbose=0, **options)
        return model

    a_number = r"\(summed\) sums over the batch and returns one number"
    with refused(rf"{a_number}(.|\n)*→ return one value"):
        fit(summed)
    with warned(r"\(Dice\) is not a mean over samples"):
        fit(losses.Dice())
    with refused(r"own layers: first\) sums over the batch(.|\n)*→ add_loss"):
        fit("mse", Adding)
    assert apart(fit(meant), fit("mse")) < 1e-6
    weighed = losses.MeanSquaredError(reduction="mean_with_sample_weight")
    with refused("divides by the sample weights of a batch"):
        fit(weighed, sample_weight=weights)


def test_what_failed_is_not_counted_by_the_losses() -> None:
    from gpubalance.training.pipelined_steps import uncounted

    inputs, labels = of_two(8)
    model = of_all_kinds()
    model.evaluate(inputs, labels, verbose=0)
    loss = model._compile_loss
    before = [float(metric.result()) for metric in loss.metrics]
    with refused("no memory", MemoryError), uncounted(model):
        loss(labels, model({name: -values for name, values in inputs.items()}))
        raise MemoryError("no memory")
    assert [float(metric.result()) for metric in loss.metrics] == before


def test_a_step_that_is_interrupted_is_done_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the next fit's first step would have parts of both."""
    from gpubalance.engine.pipeline import pipeline

    layers, model, alone = beside(two_in_two_out)
    given = of_two(_MICRO_BATCH * _MICRO_BATCHES)

    def interrupted(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        layers.fit(model, *given, verbose=0)
    alone.fit(*given, verbose=0)
    assert apart(model, alone) < 1e-6
    assert int(model.optimizer.iterations) == int(alone.optimizer.iterations) == 1


@cases("module, name", ("cut_model.Update", "trace"), ("section.Section", "backward"))
def test_a_trace_that_is_interrupted_is_made_again(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every later step would train nothing, and what it counted would stay counted."""

    def built() -> Any:
        kept = of.BatchNormalization(), keeping("sum")
        return compiled([*dense()[:-1], *kept, of.Dense(3, "softmax")])

    layers, model, alone = beside(built)
    given = numbers(_MICRO_BATCH)

    def interrupted(*_: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(f"gpubalance.engine.pipeline.{module}.{name}", interrupted)
    with pytest.raises(KeyboardInterrupt):
        layers.fit(model, *given, verbose=0)
    layers.fit(model, *given, verbose=0)
    alone.fit(*given, verbose=0)
    assert apart(model, alone) < 1e-6
    assert int(model.optimizer.iterations) == 1


def test_what_was_not_cut_is_refused(tmp_path: Path) -> None:
    inputs, labels = of_two(_SAMPLES)
    result = cut(two_in_two_out())
    file = tmp_path / "layers.json"
    file.write_text(result.model_dump_json())
    with refused("is missing", PlanMismatch):
        gpubalance.load_layers(file, simulate=1)
    layers = layers_for(two_in_two_out())
    with layers.scope():
        wider, model = two_in_two_out(width=9), two_in_two_out()
        summed = losses.SparseCategoricalCrossentropy(reduction="sum")
        mixed = two_in_two_out(loss=summed)
    with refused("other layers than", PlanMismatch):
        layers.fit(wider, inputs, labels)
    for method in (layers.fit, layers.evaluate):
        with refused(r"the data has no labels \(y\)"):
            method(model, inputs, verbose=0)
    with refused("a batch of 64 is too large: the cut is for 32"):
        layers.fit(model, inputs, labels, batch_size=64)
    with refused("samples for some outputs and not for others"):
        layers.fit(mixed, inputs, labels, verbose=0)
