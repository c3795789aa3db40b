"""What a user hands to fit, evaluate and predict, and what they are told when it is wrong."""

from __future__ import annotations

import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import BadInput, EnvironmentFault, PlanMismatch, UsageError
from gpubalance.jobs.plan.plan import plan
from gpubalance.settings.device import DeviceProfile, DriftPoint, JointProfile
from gpubalance.settings.requests import PlanRequest
from gpubalance.settings.shares import Shares
from gpubalance.training.load import load_plan
from gpubalance.training.split import Split
from tests.jobs.probes import devices_of, probe_of
from tests.late import keras, layers, tf
from tests.training.cases import CASES, classifier, compiled, dense, in_split, loss_scaled, numbers, simulated

ROOT = Path(__file__).parents[2]
X, Y = numbers(240)


def untrained() -> Any:
    keras.utils.set_random_seed(3)
    return classifier("adam")()


def trained_alone(**options: Any) -> tuple[Any, list[Any]]:
    model = untrained()
    start = model.get_weights()
    model.fit(X, Y, batch_size=100, shuffle=False, verbose=0, epochs=2, **options)
    return model, start


@cache
def alone() -> tuple[Any, list[Any]]:
    """One device's training, for all tests that only look at it."""
    return trained_alone()


def in_scope(split: Split, start: list[Any], make: Any = None) -> Any:
    with split.scope():
        model = (make or classifier("adam"))()
    model.set_weights(start)
    return model


def apart(model: Any, other: Any) -> float:
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(float(abs(a - b).max()) for a, b in pairs)


def of_dataset(kind: str) -> Any:
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    if kind == "unbatched":
        return data
    return data.batch({"in other batches": 32, "in global batches": 100}[kind])


def of_generator() -> Iterator[Any]:
    for _ in range(2):
        for first in range(0, len(X), 100):
            yield X[first : first + 100], Y[first : first + 100]


def py_dataset() -> Any:
    class Parts(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return X[100 * index : 100 * (index + 1)], Y[100 * index : 100 * (index + 1)]

    return Parts()


def test_every_kind_of_input_is_dealt_in_the_split(tensorflow: Any) -> None:
    one_device, split = untrained(), simulated((70, 30))
    model = in_scope(split, one_device.get_weights())
    options: dict[str, Any] = {"epochs": 2, "shuffle": False, "verbose": 0}
    for kind in ("unbatched", "in other batches", "in global batches", "generator", "PyDataset"):
        one_device.fit(X, Y, batch_size=100, **options)
        if kind == "generator":
            split.fit(model, of_generator(), **options, steps_per_epoch=3)
        else:
            split.fit(model, py_dataset() if kind == "PyDataset" else of_dataset(kind), **options)
        assert apart(model, one_device) < 1e-6, kind


def test_batches_of_the_splits_size_stay_as_they_are_with_smaller_ones_between(tensorflow: Any) -> None:
    one_device, split = untrained(), simulated((70, 30))
    model = in_scope(split, one_device.get_weights())
    data = of_dataset("in global batches")  # of 100, 100 and 40
    inputs, labels = (data.map(lambda *parts, at=at: parts[at]) for at in (0, 1))
    chains = {
        "repeated": data.repeat(2).prefetch(1),
        "concatenated": data.map(lambda x, y: (2 * x, y)).concatenate(data.take(2)),
        "shuffled": data.concatenate(data).shuffle(6, seed=1, reshuffle_each_iteration=False),
        "zipped": tensorflow.data.Dataset.zip((inputs.repeat(2), labels.cache().repeat(2))),
    }
    for name, chain in chains.items():
        for fit in (one_device.fit, partial(split.fit, model)):
            fit(chain, epochs=2, steps_per_epoch=None if name == "zipped" else 5, verbose=0, shuffle=False)
        assert model.optimizer.iterations.numpy() == one_device.optimizer.iterations.numpy()
        assert apart(model, one_device) < 1e-6, name


def test_splits_of_every_size_and_keras_own_strategy_train_in_one_process(tensorflow: Any) -> None:
    one_device, start = alone()
    with tensorflow.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        keras_own = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
        keras_own.compile("sgd", "sparse_categorical_crossentropy")
    for batches in ((50, 30, 20), (40, 60)):
        split = simulated(batches)
        model = in_scope(split, start)
        split.fit(model, X, Y, epochs=2, shuffle=False, verbose=0)
        assert apart(model, one_device) < 1e-6
        keras_own.fit(X, Y, batch_size=80, verbose=0)
    model = in_scope(simulated((70, 30)), start)
    for batches in ((70, 30), (20, 80)):
        simulated(batches).fit(model, X, Y, shuffle=False, verbose=0)
    assert apart(model, one_device) < 1e-6


def test_a_models_own_fit_evaluate_and_predict_are_its_splits(tensorflow: Any) -> None:
    class Own(keras.Sequential):  # type: ignore[misc]
        fits = 0

        def fit(self, *arguments: Any, **options: Any) -> Any:
            self.fits += 1
            return super().fit(*arguments, **options)

    def own() -> Any:
        return compiled(Own(dense()), optimizer="adam", metrics=["accuracy"])

    one_device, start = alone()
    splits = simulated((70, 30)), simulated((20, 80))  # on one strategy
    models = [in_scope(split, start, make) for split, make in zip(splits, (own, None), strict=True)]
    for split, model in zip(splits, models, strict=True):
        monitor = split.monitor(every=1)
        model.fit(X, Y, epochs=2, shuffle=False, verbose=0, callbacks=[monitor])
        assert monitor.epochs[-1].batches == split.batches
        assert apart(model, one_device) < 1e-6
        assert model.predict(X, verbose=0) == pytest.approx(one_device.predict(X, verbose=0), abs=1e-6)
        assert model.evaluate(X[:33], Y[:33], verbose=0) == pytest.approx(
            one_device.evaluate(X[:33], Y[:33], verbose=0), abs=1e-6
        )
    assert models[0].fits == 1
    again, _ = trained_alone()  # of no split: Keras' own
    assert apart(again, one_device) == 0


def test_evaluate_and_predict_are_one_devices_and_in_order(tensorflow: Any, caplog: pytest.LogCaptureFixture) -> None:
    one_device, _ = alone()
    split = simulated((3, 90, 7))
    model = in_scope(split, one_device.get_weights())
    for count in (240, 102):
        expected = one_device.evaluate(X[:count], Y[:count], verbose=0, return_dict=True)
        assert split.evaluate(model, X[:count], Y[:count], verbose=0, return_dict=True) == pytest.approx(
            expected, abs=1e-6
        )
    with split.scope():
        uncompiled = keras.models.clone_model(one_device)
    uncompiled.set_weights(one_device.get_weights())
    for count in (240, 101, 2):
        for one in (model, uncompiled):
            assert split.predict(one, X[:count], verbose=0) == pytest.approx(one_device.predict(X[:count], verbose=0))
    assert "node name" not in caplog.text  # TensorFlow warns of an argument whose name begins with _


def test_a_saved_model_needs_no_gpubalance_and_goes_on_with_it(tensorflow: Any, tmp_path: Path) -> None:
    """A file names the module of each class that Keras looks for when it loads it."""
    split = simulated((70, 30))
    model = in_scope(split, untrained().get_weights())
    split.fit(model, X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as saved:
        assert b'"module": "keras' in saved.read("config.json")
        assert not [name for name in saved.namelist() if b"gpubalance" in saved.read(name)]
    with split.scope():
        again = keras.models.load_model(tmp_path / "model.keras")
    monitor = split.monitor(every=1)
    again.fit(X, Y, epochs=2, verbose=0, callbacks=[monitor])  # its own fit is the split's
    assert monitor.epochs[-1].batches == split.batches
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.compiled
    assert loaded.predict(X, verbose=0) == pytest.approx(split.predict(model, X, verbose=0), abs=1e-6)


def test_validation_between_does_not_lose_a_batch(tensorflow: Any) -> None:
    one_device, start = trained_alone(validation_data=(X, Y))
    split = simulated((70, 30))
    model = in_scope(split, start)
    counted: list[int] = []

    class Looks(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del logs
            counted.append(batch)
            self.model.evaluate(X[:50], Y[:50], verbose=0)
            split.predict(self.model, X[:5], verbose=0)

    looks = Looks()
    split.fit(model, of_generator(), steps_per_epoch=3, epochs=2, verbose=0, validation_data=(X, Y), callbacks=[looks])
    assert counted == [0, 1, 2, 0, 1, 2]
    assert apart(model, one_device) < 1e-6
    early = keras.callbacks.EarlyStopping("val_loss", min_delta=10.0, patience=1)
    history = split.fit(model, X, Y, epochs=9, verbose=0, validation_data=(X[:33], Y[:33]), callbacks=[early])
    assert len(history.history["val_accuracy"]) == 2
    assert history.model is model


def test_moving_averages_are_those_of_all_samples(tensorflow: Any) -> None:
    def make() -> Any:
        return compiled([keras.Input((6,)), layers.BatchNormalization(), layers.Dense(3, "softmax")])

    one_device, split = make(), simulated((1, 9, 90))
    model = in_scope(split, one_device.get_weights(), make)
    options = {"batch_size": 100, "epochs": 2, "shuffle": False, "verbose": 0}
    one_device.fit(X[:200], Y[:200], **options)
    split.fit(model, X[:200], Y[:200], **options)
    assert model.layers[0].moving_mean.numpy() == pytest.approx(one_device.layers[0].moving_mean.numpy(), abs=1e-6)
    copies = tensorflow.nest.flatten(
        split.place.strategy.experimental_local_results(model.layers[0].moving_variance.value)
    )
    assert copies[0].numpy() == pytest.approx(copies[-1].numpy())


def test_one_model_takes_data_of_several_kinds(tensorflow: Any) -> None:
    split = simulated((70, 30))
    model = in_scope(split, untrained().get_weights())
    split.evaluate(model, X, Y, verbose=0)
    split.fit(model, X, Y, 100, 1, verbose=0)
    split.fit(model, X, Y.astype(np.int32), sample_weight=np.ones(240), verbose=0)
    split.fit(model, X.astype(np.float64), Y, batch_size=200, verbose=0, validation_data=(X, Y, np.ones(240)))

    def thrice() -> Iterator[Any]:
        for _ in range(3):
            yield X[:100], Y[:100], None

    assert len(split.fit(model, thrice(), verbose=0).history["loss"]) == 1
    endless = of_dataset("unbatched").repeat()
    with pytest.raises(BadInput, match="never ends"):
        split.fit(model, endless, verbose=0)
    assert len(split.fit(model, endless, steps_per_epoch=2, epochs=2, verbose=0).history["loss"]) == 2
    model.trainable = False
    with split.scope():
        model.compile("sgd", "sparse_categorical_crossentropy")
    before = model.get_weights()
    split.fit(model, X, Y, verbose=0)
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))


def test_padded_batches_stay_as_they_are(tensorflow: Any) -> None:
    def sentences() -> Iterator[Any]:
        for length in (3, 5, 4):
            words = np.arange(50 * length).reshape(50, length) % 19 + 1
            yield words, words

    spec = tensorflow.TensorSpec((None, None), tensorflow.int64)
    data = tensorflow.data.Dataset.from_generator(sentences, output_signature=(spec, spec))
    split = simulated((70, 30))
    with split.scope():
        model = keras.Sequential(
            [keras.Input((None,), dtype="int32"), layers.Embedding(20, 4), layers.Dense(20, "softmax")]
        )
        model.compile("sgd", "sparse_categorical_crossentropy")
    assert len(split.fit(model, data, epochs=2, verbose=0).history["loss"]) == 2


def test_a_model_from_elsewhere_is_refused_with_what_to_do(tensorflow: Any) -> None:
    split = simulated((70, 30))
    with pytest.raises(BadInput, match=r"was built outside this split's scope\(\)(.|\n)*→ with split\.scope\(\):"):
        split.fit(classifier()(), X, Y)
    with split.scope():
        model = classifier()()
    with pytest.raises(
        EnvironmentFault, match=r"fewer CPU devices than 9(.|\n)*of several splits, the largest's first"
    ):
        simulated((1,) * 9).scope()
    with pytest.raises(BadInput, match="a batch of 1 can't be shared among 2 devices"):
        split.fit(model, X, Y, batch_size=1)
    model.compile("adam", "mse")
    with pytest.raises(BadInput, match=r"the optimizer of the model .* was made, or the model compiled, outside"):
        split.fit(model, X, Y)
    with split.scope():
        model = classifier("adam")()
        with pytest.raises(BadInput, match=r"called inside `with split\.scope\(\):`"):
            split.fit(model, X, Y)
        with pytest.raises(BadInput, match="entered inside the scope of other devices"):
            simulated((10, 60, 30)).scope()
    layer = keras.layers.Dense(3, "softmax")
    layer.build((None, 6))
    with split.scope():
        model = keras.Sequential([keras.Input((6,)), layer])
        model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(BadInput, match=f"the layer {layer.name} of the model"):
        split.fit(model, X, Y)


def test_a_subclass_that_was_built_without_its_layers_trains(tensorflow: Any) -> None:
    class Lazy(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3, "softmax")

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

    split = simulated((70, 30))
    with split.scope():
        model = Lazy()
        with pytest.warns(UserWarning, match="has unbuilt state"):
            model.build((None, 6))
        model.compile("adam", "sparse_categorical_crossentropy")
    losses = split.fit(model, X, Y, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_what_a_split_cannot_do_is_told_in_a_sentence(tensorflow: Any) -> None:
    split = simulated((70, 30))
    with split.scope():
        averaging = classifier(keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=2))()
        accumulating = classifier(keras.optimizers.SGD(0.5, gradient_accumulation_steps=2))()
        stateful = keras.Sequential(
            [keras.Input(batch_shape=(100, 3, 2)), keras.layers.LSTM(4, stateful=True, name="memory")]
        )
        compiled, eager = (classifier("adam", compiled={to: True})() for to in ("jit_compile", "run_eagerly"))
    for model, what in ((averaging, "ema_overwrite_frequency"), (accumulating, "gradient_accumulation_steps")):
        with pytest.raises(BadInput, match=f"optimizer has {what}, which Keras can't do over several"):
            split.fit(model, X, Y, verbose=0)
    with pytest.raises(BadInput, match=r"the layer memory of the model .* is stateful"):
        split.predict(stateful, X.reshape(-1, 3, 2)[:100], verbose=0)
    with pytest.warns(UserWarning, match=r"jit_compile=True, which is for one device: .* trains without XLA"):
        split.fit(compiled, X, Y, verbose=0)
    with pytest.warns(UserWarning, match=r"set to run eagerly, which is for one device: with a split it is traced"):
        split.fit(eager, X, Y, verbose=0)


def test_what_cannot_be_trained_on_is_told_in_a_sentence(tensorflow: Any) -> None:
    import gpubalance

    split, by_ratios = simulated((70, 30)), Split(ratios=[7, 3], simulate=2)
    trained, samples = in_scope(split, untrained().get_weights()), of_dataset("unbatched")
    split.fit(trained, X, Y, verbose=0)
    for model in (trained, in_scope(split, trained.get_weights())):
        for nothing in ((X[:0], Y[:0]), (samples.take(0),), (samples.filter(lambda *_: False),)):
            with pytest.raises(BadInput, match="the data has no samples"):
                split.fit(model, *nothing, verbose=0)
        for call in (split.fit, split.evaluate):
            for unlabelled in (X, samples.map(lambda *parts: parts[0])):
                with pytest.raises(BadInput, match=r"the data has no labels \(y\)\n"):
                    call(model, unlabelled, verbose=0)
    with pytest.raises(BadInput, match="there is no data: x is None"):
        split.fit(trained)
    for data in ({"x": samples}, {"x": X, "y": Y, "validation_data": samples}):
        with pytest.raises(BadInput, match=r"gives single samples(.|\n)*→ batch it: dataset\.batch\(1000\)"):
            by_ratios.fit(trained, **data, verbose=0)
    with pytest.raises(BadInput, match=r"split\.predict takes a Keras model first, and got a value of type ndarray\n"):
        split.predict(X)
    with pytest.raises(
        BadInput, match=r"gpubalance\.distribute takes a Keras model first, and got a value of type NoneType\n"
    ):
        gpubalance.distribute(None, ratios=[4, 3], simulate=2)


def test_what_micro_batches_cannot_do_is_refused(tensorflow: Any) -> None:
    split = simulated((70, 30), (20, 30))
    with pytest.raises(UsageError, match="can't be rebalanced"):
        split.monitor(rebalance=True)
    for name in ("synchronised batch norm", "masked sentences", "reduction mean_with_sample_weight"):
        case = CASES[name]
        data = case.data(200)
        with split.scope():
            model = case.make()
        with pytest.raises(BadInput, match="micro-batches"):
            split.fit(model, *data[:2], sample_weight=(*data, None)[2], verbose=0)


def test_a_model_that_exists_is_copied_with_all_it_has_learned(tensorflow: Any) -> None:
    import gpubalance

    one_device, _ = trained_alone()
    model = gpubalance.distribute(one_device, ratios=[4, 3], simulate="2")
    assert model.split.batches == (4, 3)
    for one in (one_device, model):
        one.fit(X, Y, epochs=1, validation_split=0.1, shuffle=False, verbose=0)
        one.fit(X, Y, batch_size=100, epochs=2, shuffle=False, verbose=0)
        one.fit(of_dataset("in other batches"), shuffle=False, verbose=0)
    assert apart(model, one_device) < 1e-6
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(one_device.evaluate(X, Y, verbose=0), abs=1e-6)


def of_ones_own() -> Any:
    """A model of a class and a loss that Keras does not know, with a layer that has adapted to data."""

    class Own(keras.Sequential):  # type: ignore[misc]
        pass

    adapted = keras.layers.Normalization()
    adapted.adapt(5 * X + 3)
    model = Own([keras.Input((6,)), adapted, keras.layers.Dense(3, "softmax")])
    return compiled(model, lambda y, p: keras.losses.sparse_categorical_crossentropy(y, p), "adam")


@pytest.mark.parametrize(
    ("make", "built_for", "within"),
    [
        pytest.param(of_ones_own, None, 1e-6, id="of a class of one's own"),
        pytest.param(classifier("adam"), (20, 50, 30), 1e-6, id="in another split's scope"),
        pytest.param(classifier(loss_scaled, layers={"dtype": "mixed_float16"}), None, 2e-3, id="mixed_float16"),
    ],
)
def test_a_copy_goes_on_as_the_model_would(tensorflow: Any, make: Any, built_for: Any, within: float) -> None:
    import gpubalance

    split = simulated(built_for) if built_for else None
    with split.scope() if split else nullcontext():
        model = make()
    fit = partial(split.fit, model) if split else model.fit
    options = {"batch_size": 100, "shuffle": False, "verbose": 0}
    fit(X, Y, **options)
    copy = gpubalance.distribute(model, ratios=[4, 3], simulate="2")
    assert type(copy) is type(model)
    assert copy.predict(X, verbose=0) == pytest.approx(model.predict(X, verbose=0), abs=1e-5)
    fit(X, Y, **options)
    copy.fit(X, Y, **options)
    assert apart(copy, model) < within


def test_what_a_vectoriser_learned_is_copied_and_what_keras_cannot_load_is_refused(tensorflow: Any) -> None:
    import gpubalance

    words = keras.layers.TextVectorization(output_sequence_length=4)
    words.adapt(["one two three", "four five"])
    model = keras.Sequential([keras.Input((), dtype="string"), words])
    copy = gpubalance.distribute(model, ratios=[4, 3], simulate="2")
    told = tensorflow.constant(["two one", "five six", "four"])
    assert (copy.predict(told, verbose=0) == model.predict(told, verbose=0)).all()

    class Unsaved(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()

    with pytest.raises(BadInput, match=r"copy the model unsaved: .*__init__\(\) got an unexpected .* 'trainable'\n"):
        gpubalance.distribute(Unsaved(), ratios=[4, 3], simulate="2")

    class Unbuilt(keras.Model):  # type: ignore[misc]
        def __init__(self, **named: Any) -> None:
            super().__init__(**named)
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    unbuilt = Unbuilt()
    unbuilt.build((None, 6))
    with pytest.raises(BadInput, match=r"its layers have no weights before(.|\n)*model\(x\[:1\]\)"):
        gpubalance.distribute(unbuilt, ratios=[4, 3], simulate="2")


def hot_pair() -> Split:
    """Two equal devices, of which the first becomes slower after some seconds of training."""
    cool = DeviceProfile(name="cool", alpha_s=0.01, beta_s=0.002)
    hot = cool.model_copy(update={"name": "hot", "drift": (DriftPoint(from_s=0.3, factor=2.0),)})
    return Split.of(devices_of(hot, cool), Shares((50, 50)), JointProfile())


def test_the_monitor_takes_the_stamps_of_the_shortest_step_in_their_order(tensorflow: Any) -> None:
    """Else a device computes for less than no time, and another waits for more than all of a step."""
    split, model = in_split(batches=(40, 24))
    monitor = split.monitor(every=1)
    split.fit(model, X[:64], Y[:64], epochs=50, verbose=0, callbacks=[monitor])  # a step each
    assert all(seconds > 0 for epoch in monitor.epochs for seconds in (*epoch.compute_s, *epoch.update_s, epoch.sync_s))


def test_the_monitor_says_when_the_split_no_longer_fits(tensorflow: Any, tmp_path: Path) -> None:
    split = hot_pair()
    model = in_scope(split, untrained().get_weights())
    monitor = split.monitor(every=2, log_dir=str(tmp_path))
    with pytest.warns(UserWarning, match=r"no longer fits: GPU:1 waits \d+% of the time that GPU:0 computes"):
        split.fit(model, X, Y, epochs=10, verbose=0, callbacks=[monitor])
    with pytest.raises(BadInput, match="the monitor's split is not what trains the model"):
        simulated((50, 50)).fit(model, X, Y, verbose=0, callbacks=[monitor])
    assert 1.1 < monitor.epochs[-1].imbalance < 1.45  # 4/3 on a machine that does nothing else
    assert monitor.epochs[-1].wait_s[1] > 0
    (log,) = tmp_path.iterdir()
    with pytest.raises(tensorflow.errors.OpError, match=f"{log} is not a directory"):
        split.monitor(log_dir=log)
    tags = {
        value.tag for event in tensorflow.compat.v1.train.summary_iterator(str(log)) for value in event.summary.value
    }
    assert {"gpubalance/compute_s/GPU:0", "gpubalance/wait_s/GPU:1", "gpubalance/imbalance"} <= tags


def test_a_split_that_is_rebalanced_follows_its_devices(tensorflow: Any) -> None:
    start = untrained().get_weights()
    split = hot_pair()
    model = in_scope(split, start)
    monitor = split.monitor(every=1, rebalance=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        split.fit(model, X, Y, epochs=12, shuffle=False, verbose=0, callbacks=[monitor])
    assert split.global_batch == 100
    assert split.batches[0] == pytest.approx(33, abs=8)
    assert monitor.epochs[-1].imbalance < 1.2
    assert any((a != b).any() for a, b in zip(model.get_weights(), start, strict=True))


def test_importing_loads_no_tensorflow() -> None:
    code = (
        "import sys, gpubalance; split = gpubalance.Split(batches=[7, 3], simulate=2);"
        "print(split, split.global_batch, 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Split(CPU:0 CPU: 7, CPU:1 CPU: 3) 10 False"


def test_a_plan_is_loaded_with_its_devices_and_batches(tmp_path: Path) -> None:
    quick, four = (str(ROOT / "configs" / f"{name}.toml") for name in ("quick-pair", "four-unlike"))
    devices = simulated_devices(quick)[0]
    made = plan(probe_of(devices), devices, PlanRequest(accumulate=1, sync_s=0.0))
    path = tmp_path / "plan.json"
    path.write_text(made.model_dump_json())
    for simulate in (None, quick):
        split = load_plan(path, simulate=simulate)
        assert split.batches == made.batches
        assert split.limits == tuple(share.limit for share in made.shares)
    for other in (four, 2):
        with pytest.raises(PlanMismatch, match="the plan is for other devices"):
            load_plan(path, simulate=other)
    settings = made.settings.model_copy(update={"xla": True})
    path.write_text(made.model_copy(update={"settings": settings}).model_dump_json())
    with pytest.warns(UserWarning, match="was measured with XLA, and a split trains without"):
        load_plan(path)
