"""What a user hands to fit, evaluate and predict gives what one device gives.

See also test_exact.py.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpubalance.errors import PlanMismatch
from gpubalance.training.split import load_plan
from tests.cli.program import QUICK_PAIR, ROOT
from tests.support.late import keras, layers, tf
from tests.support.python import python
from tests.support.told import refused, warned
from tests.training.cases import KERAS_OWN, apart, in_both, in_split, largest
from tests.training.models import classifier, compiled, dense, two_in_two_out
from tests.training.plans import planned
from tests.training.samples import numbers, of_two, weighted

X, Y = numbers(240)


def trained_alone() -> tuple[Any, list[Any]]:
    keras.utils.set_random_seed(3)
    model = classifier("adam")()
    start = model.get_weights()
    model.fit(X, Y, batch_size=100, shuffle=False, verbose=0, epochs=2)
    return model, start


def of_generator() -> Iterator[Any]:
    for _ in range(2):
        for first in range(0, len(X), 100):
            yield X[first : first + 100], Y[first : first + 100]


def py_dataset() -> Any:
    class Parts(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            at = slice(100 * index, 100 * (index + 1))
            return X[at], Y[at]

    return Parts()


def test_every_kind_of_input_is_dealt_in_the_split() -> None:
    """Batches of the split's size stay as they are, with smaller ones between.

    A dataset's other batches are regrouped.
    """
    split, model, one_device = in_both()
    of = tf.data.Dataset
    single = of.from_tensor_slices((X, Y))
    data = single.batch(100)  # of 100, 100 and 40
    inputs, labels = (data.map(lambda *parts, at=at: parts[at]) for at in (0, 1))
    kinds = {
        "unbatched": (single, data, None),
        "in other batches": (single.batch(32), data, None),
        "PyDataset": (py_dataset(), data, None),
        "generator": (of_generator(), data.repeat(), 3),
        "in global batches": (data, data, None),
    }
    drawn = {"seed": 1, "reshuffle_each_iteration": False}
    chains = {
        "repeated": data.repeat(2).prefetch(1),
        "concatenated": data.map(lambda x, y: (2 * x, y)).concatenate(data.take(2)),
        "shuffled": data.concatenate(data).shuffle(6, **drawn),
    }
    zipped = of.zip((inputs.repeat(2), labels.cache().repeat(2)))
    kinds |= {name: (chain, chain, 5) for name, chain in chains.items()}
    kinds["zipped"] = (zipped, zipped, None)
    for name, (mine, its, steps) in kinds.items():
        for fit, given in ((one_device.fit, its), (partial(split.fit, model), mine)):
            fit(given, epochs=2, steps_per_epoch=steps, verbose=0, shuffle=False)
        assert len({int(of.optimizer.iterations) for of in (model, one_device)}) == 1
        assert apart(model, one_device) < 1e-6, name


def test_steps_of_what_is_not_trained_on_are_the_users_own_batches() -> None:
    """Of a dataset, arrays, a PyDataset and a generator, in their order, beside one device."""
    split, model, one_device = in_both(batches=(3, 90, 7))
    single = tf.data.Dataset.from_tensor_slices((X, Y))
    kinds: dict[str, Any] = {
        "fewer than devices": lambda: {"x": X[:4], "y": Y[:4]},
        "smaller batches": lambda: {"x": single.batch(4)},
        "endless": lambda: {"x": single.batch(7).repeat()},
        "larger batches": lambda: {"x": single.batch(110)},
        "arrays": lambda: {"x": X[:33], "y": Y[:33]},
        "arrays in batches": lambda: {"x": X, "y": Y, "batch_size": 9},
        "PyDataset": lambda: {"x": py_dataset()},
        "generator": lambda: {"x": of_generator()},
    }
    for name, given in kinds.items():
        expected = one_device.evaluate(**given(), steps=2, verbose=0)
        outputs = one_device.predict(**inputs_of(given()), steps=2, verbose=0)
        own = partial(split.evaluate, model), partial(split.predict, model)
        for evaluate, predict in ((model.evaluate, model.predict), own):
            found = evaluate(**given(), steps=2, verbose=0)
            assert found == pytest.approx(expected, abs=1e-6), name
            found = predict(**inputs_of(given()), steps=2, verbose=0)
            assert found == pytest.approx(outputs, abs=1e-6), name


def inputs_of(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "y"}


def test_a_models_own_fit_evaluate_and_predict_are_its_splits() -> None:
    """Whatever other splits and strategies the process has."""

    class Own(keras.Sequential):
        fits = 0

        def fit(self, *arguments: Any, **options: Any) -> Any:
            self.fits += 1
            return super().fit(*arguments, **options)

    def own() -> Any:
        return compiled(Own(dense()), optimizer="adam", metrics=["accuracy"])

    one_device, start = trained_alone()
    with tf.distribute.MirroredStrategy(KERAS_OWN).scope():
        keras_own = compiled(dense())
    first, model = in_split(own)
    second, of_both = in_split(classifier("adam"), batches=(20, 80))  # on one strategy
    for one in (model, of_both):
        one.set_weights(start)
    keras_own.fit(X, Y, batch_size=80, verbose=0)
    monitor = first.monitor(every=1)
    model.fit(X, Y, epochs=2, shuffle=False, verbose=0, callbacks=[monitor])
    assert monitor.epochs[-1].batches == (70, 30)
    assert model.fits == 1
    for split in (first, second):
        split.fit(of_both, X, Y, shuffle=False, verbose=0)
    assert max(apart(one, one_device) for one in (model, of_both)) < 1e-6
    of_one = one_device.predict(X, verbose=0)
    assert model.predict(X, verbose=0) == pytest.approx(of_one, abs=1e-6)
    few = X[:33], Y[:33]
    expected = one_device.evaluate(*few, verbose=0)
    assert model.evaluate(*few, verbose=0) == pytest.approx(expected, abs=1e-6)
    again, _ = trained_alone()  # of no split: Keras' own
    assert apart(again, one_device) == 0


def test_methods_with_arguments_of_their_own_train_on_the_calling_split() -> None:
    class Own(keras.Sequential):
        def fit(self, data: Any, labels: Any, monitor: Any, rounds: int = 1) -> Any:
            options = {"shuffle": False, "callbacks": [monitor], "verbose": 0}
            super().fit(data, labels, epochs=rounds, **options)
            return self.evaluate(data, labels)

        def evaluate(self, *pair: Any) -> Any:
            return super().evaluate(*pair, verbose=0)

        def predict(self, data: Any) -> Any:
            return super().predict(data, verbose=0)

    one_device, start = trained_alone()
    model = in_split(lambda: compiled(Own(dense()), optimizer="adam"))[1]
    other = in_split(classifier(), batches=(20, 80))[0]  # on the same strategy
    model.set_weights(start)
    monitor = other.monitor(every=1)
    loss = other.fit(model, X, Y, monitor, rounds=2)
    assert monitor.epochs[-1].batches == (20, 80)
    assert apart(model, one_device) < 1e-6
    assert other.evaluate(model, X, Y) == pytest.approx(loss, abs=1e-6)
    assert loss == pytest.approx(loss_of(one_device), abs=1e-6)
    of_one = one_device.predict(X, verbose=0)
    assert other.predict(model, X) == pytest.approx(of_one, abs=1e-6)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'epochs'"):
        other.fit(model, X, Y, monitor, epochs=2)
    Own.predict = lambda *_: None  # type: ignore[method-assign]
    with warned(r"did not call super\(\).predict in this thread, so split had no part"):
        other.predict(model, X)


def loss_of(model: Any) -> float:
    loss, _ = model.evaluate(X, Y, verbose=0)
    return float(loss)


@pytest.mark.full
def test_a_saved_model_needs_no_gpubalance_and_goes_on_with_it(tmp_path: Path) -> None:
    """A file names the module of each class that Keras looks for when it loads it."""
    split, model = in_split(classifier("adam"))
    split.fit(model, X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as saved:
        assert b'"module": "keras' in saved.read("config.json")
        assert not any(b"gpubalance" in saved.read(name) for name in saved.namelist())
    with split.scope():
        again = keras.models.load_model(tmp_path / "model.keras")
    monitor = split.monitor(every=1)
    # Its own fit is the split's
    again.fit(X, Y, epochs=2, verbose=0, callbacks=[monitor])
    assert monitor.epochs[-1].batches == split.batches
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.compiled
    expected = split.predict(model, X, verbose=0)
    assert loaded.predict(X, verbose=0) == pytest.approx(expected, abs=1e-6)


def test_a_model_quantized_after_training_is_as_on_one_device() -> None:
    """Its new variables are the split's, and no step that was traced has the old ones."""
    _, model, one_device = in_both()
    for one in (model, one_device):
        one.fit(X, Y, batch_size=100, shuffle=False, verbose=0)
        before = one.predict(X, verbose=0)
        one.quantize("int8")
        assert largest(one.predict(X, verbose=0), before) > 1e-4
    mine, its = (one.predict(X, verbose=0) for one in (model, one_device))
    assert largest(mine, its) < 1e-6
    mine, its = (one.evaluate(X, Y, verbose=0) for one in (model, one_device))
    assert mine == pytest.approx(its)
    for one in (model, one_device):
        one.fit(X, Y, batch_size=100, shuffle=False, verbose=0)
    assert apart(model, one_device) < 1e-6


def test_validation_between_does_not_lose_a_batch() -> None:
    split, model, one_device = in_both()
    one_device.fit(X, Y, batch_size=100, shuffle=False, verbose=0, epochs=2)
    counted: list[int] = []

    def look(batch: int, logs: Any) -> None:
        counted.append(batch)
        model.evaluate(X[:50], Y[:50], verbose=0)
        split.predict(model, X[:5], verbose=0)

    looks = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    options = {"validation_data": (X, Y), "callbacks": [looks], "verbose": 0}
    split.fit(model, of_generator(), steps_per_epoch=3, epochs=2, **options)
    assert counted == [0, 1, 2, 0, 1, 2]
    assert apart(model, one_device) < 1e-6


@pytest.mark.full
def test_a_callback_may_train_test_and_predict_on_a_batch_of_arrays() -> None:
    """Also read the optimizer's numbers, as plain numbers; all beside one device."""
    _, model, one_device = in_both()
    found: dict[Any, list[Any]] = {one_device: [], model: []}

    def look(one: Any, batch: int) -> None:
        each = np.arange(50, dtype=np.float32)
        weights = {0: 1.0, 1: 2.0, 2: 3.0}
        trained = one.train_on_batch(X[:7], Y[:7], class_weight=weights)
        found[one] += [
            *np.ravel(one.predict_on_batch(X[: 9 - batch])),
            *one.test_on_batch(X[:50], Y[:50]),
            *one.test_on_batch(X[:50], Y[:50], sample_weight=each),
            *trained,
            float(one.optimizer.learning_rate),
            int(one.optimizer.iterations),
        ]

    for one in (one_device, model):
        looks = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, one=one, **_: look(one, batch)
        )
        one.fit(X, Y, 100, shuffle=False, verbose=0, epochs=2, callbacks=[looks])
    assert found[model] == pytest.approx(found[one_device], rel=1e-5, abs=1e-6)
    assert found[model][-1] == 12
    assert apart(model, one_device) < 1e-6


def test_moving_averages_are_those_of_all_samples() -> None:
    def make() -> Any:
        last = layers.Dense(3, "softmax")
        return compiled([keras.Input((6,)), layers.BatchNormalization(), last])

    _, model, one_device = in_both(make, (1, 9, 90), (1, 9, 30))
    options = {"batch_size": 100, "epochs": 2, "shuffle": False, "verbose": 0}
    for one in (one_device, model):
        one.fit(X[:200], Y[:200], **options)
    mean, expected = (of.layers[0].moving_mean.numpy() for of in (model, one_device))
    assert mean == pytest.approx(expected, abs=1e-6)
    first, *_, last = model.layers[0].moving_variance.value.values
    assert first.numpy() == pytest.approx(last.numpy())


def test_one_weight_for_all_of_a_batch_is_each_samples() -> None:
    """In batches of the split's size, and in others. A sample may have one weight, too."""
    split, model, one_device = in_both()
    of = tf.data.Dataset
    samples = of.from_tensor_slices((X, Y))

    def weighted(size: int, weights: Any) -> Any:
        with_weights = of.zip((samples.batch(size), of.from_tensor_slices(weights)))
        return with_weights.map(lambda batch, weight: (*batch, weight))

    weights = np.array([0.5, 2.0, 1.0, 3.0], np.float32)
    of_each = np.repeat(weights, 60)
    three = weights[:3]
    kinds = {
        "in global batches": (weighted(100, three), np.repeat(three, 100)[:240]),
        "in other batches": (weighted(60, weights), of_each),
        "of single samples": (of.from_tensor_slices((X, Y, of_each)), of_each),
    }
    for name, (mine, its) in kinds.items():
        split.fit(model, mine, verbose=0)
        one_device.fit(X, Y, 100, sample_weight=its, shuffle=False, verbose=0)
        assert apart(model, one_device) < 1e-6, name


def test_outputs_without_sample_weights_count_as_on_one_device() -> None:
    """Keras takes weights for some outputs. Labels must be there, also those without a loss."""
    inputs, labels = of_two(100)
    weights = {"kind": None, "size": weighted(100)[2]}
    split, model, one_device = in_both(two_in_two_out)
    options: dict[str, Any] = {
        "validation_data": (inputs, labels, weights),
        "sample_weight": weights,
    }
    options |= {"batch_size": 100, "shuffle": False, "verbose": 0}
    mine = split.fit(model, inputs, labels, **options).history
    its = one_device.fit(inputs, labels, **options).history
    assert largest([mine[name] for name in its], its.values()) < 1e-6
    assert apart(model, one_device) < 1e-6
    with refused(r'y\["size"\] is missing(.|\n)*→ give labels of any value'):
        split.fit(model, inputs, labels | {"size": None}, verbose=0)


@pytest.mark.full
def test_samples_have_a_weight_each_where_a_models_inputs_are_unknown() -> None:
    """Their own first sizes are alike, as those of a batch are."""

    def make() -> Any:
        return compiled([layers.Dense(6, kernel_initializer="ones")], "mse")

    one_device = make()
    split, model = in_split(make)
    x, weights = X[:100], np.repeat(np.array([0.5, 2.0], np.float32), 50)
    one_device.fit(x, x, 100, sample_weight=weights, shuffle=False, verbose=0)
    split.fit(model, tf.data.Dataset.from_tensor_slices((x, x, weights)), verbose=0)
    assert apart(model, one_device) < 1e-6


def test_a_step_of_ones_own_takes_batches_of_four_parts() -> None:
    """Keras' own unpacking knows three; others have no names in a warning."""

    class OfFour(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, shift, y, weights = data
            return super().train_step((x + shift, y, weights))

    def batches(shift: Any) -> Any:
        weights = np.linspace(0.5, 1.5, len(X), dtype=np.float32)
        return tf.data.Dataset.from_tensor_slices((X, shift, Y, weights)).batch(100)

    split, model, one_device = in_both(lambda: compiled(OfFour(dense())))
    one_device.fit(batches(X), shuffle=False, verbose=0)
    split.fit(model, batches(X), shuffle=False, verbose=0)
    assert apart(model, one_device) < 1e-6
    with split.scope():
        other = compiled(OfFour(dense()))
    with warned("is NaN or infinite for the samples tried: their part 2 contain"):
        split.fit(other, batches(X * np.nan), shuffle=False, verbose=0)


@pytest.mark.full
def test_one_model_takes_data_of_several_kinds() -> None:
    split, model = in_split(classifier("adam"))
    split.fit(model, X, Y.astype(np.int32), sample_weight=np.ones(240), verbose=0)
    validation = (X, Y, np.ones(240))
    split.fit(model, X.astype("f8"), Y, 200, verbose=0, validation_data=validation)

    def thrice() -> Iterator[Any]:
        for _ in range(3):
            yield X[:100], Y[:100], None

    assert len(split.fit(model, thrice(), verbose=0).history["loss"]) == 1
    endless = tf.data.Dataset.from_tensor_slices((X, Y)).repeat()
    with refused("the dataset is infinite"):
        split.fit(model, endless, verbose=0)
    trained = split.fit(model, endless, steps_per_epoch=2, epochs=2, verbose=0)
    assert len(trained.history["loss"]) == 2


def test_importing_loads_no_tensorflow() -> None:
    code = (
        "import sys, gpubalance; split = gpubalance.Split(batches=[7, 3], simulate=2);"
        "print(split, split.global_batch, 'tensorflow' in sys.modules)"
    )
    done = python("-c", code, check=True)
    assert done.stdout.strip() == "Split(CPU:0 CPU: 7, CPU:1 CPU: 3) 10 False"


def test_a_plan_is_loaded_with_its_devices_and_batches(tmp_path: Path) -> None:
    quick, four = QUICK_PAIR, str(ROOT / "configs" / "four-unlike.toml")
    made = planned(accumulate=1, sync_s=0.0)
    path = tmp_path / "plan.json"
    path.write_text(made.model_dump_json())
    for simulate in (None, quick):
        split = load_plan(path, simulate=simulate)
        assert split.batches == made.batches
        assert split.limits == tuple(share.limit for share in made.shares)
        assert split.fixed_samples == pytest.approx([0.008 / 0.0002, 0.008 / 0.0003])
    of_a_profile = r"devices of a profile(.|\n)*name the profile that it was made with"
    for other, told in ((four, "the plan is for other devices"), (2, of_a_profile)):
        with pytest.raises(PlanMismatch, match=told):
            load_plan(path, simulate=other)
