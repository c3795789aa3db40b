"""What a user hands to fit, evaluate and predict, and what they are told when it is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpubalance.config import Device, DeviceProfile, DriftPoint, JointProfile
from gpubalance.errors import BadInput, UsageError
from gpubalance.training.split import Split, load_plan
from tests.engine.steps import separate_collectives
from tests.training.cases import classifier, numbers, simulated

ROOT = Path(__file__).parents[2]
X, Y = numbers(240)


def trained_alone(**options: Any) -> tuple[Any, list[Any]]:
    import keras

    keras.utils.set_random_seed(3)
    model = classifier("adam")()
    start = model.get_weights()
    model.fit(X, Y, batch_size=100, shuffle=False, verbose=0, epochs=2, **options)
    return model, start


def in_scope(split: Split, start: list[Any], make: Any = None) -> Any:
    with split.scope():
        model = (make or classifier("adam"))()
    model.set_weights(start)
    return model


def apart(model: Any, other: Any) -> float:
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(float(abs(a - b).max()) for a, b in pairs)


def of_dataset(kind: str) -> Any:
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X, Y))
    if kind == "unbatched":
        return data
    return data.batch({"in other batches": 32, "in global batches": 100}[kind])


def of_generator() -> Iterator[Any]:
    for _ in range(2):
        for first in range(0, len(X), 100):
            yield X[first : first + 100], Y[first : first + 100]


def py_dataset() -> Any:
    import keras

    class Parts(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return X[100 * index : 100 * (index + 1)], Y[100 * index : 100 * (index + 1)]

    return Parts()


@pytest.mark.parametrize("kind", ["unbatched", "in other batches", "in global batches", "generator", "PyDataset"])
def test_every_kind_of_input_is_dealt_in_the_split(tensorflow: Any, kind: str) -> None:
    alone, start = trained_alone()
    split = simulated((70, 30))
    model = in_scope(split, start)
    options: dict[str, Any] = {"epochs": 2, "shuffle": False, "verbose": 0}
    if kind == "generator":
        split.fit(model, of_generator(), **{**options, "steps_per_epoch": 3})
    else:
        split.fit(model, py_dataset() if kind == "PyDataset" else of_dataset(kind), **options)
    assert apart(model, alone) < 1e-6


def test_a_stream_without_an_end_is_taken_in_steps(tensorflow: Any) -> None:
    split = simulated((70, 30))
    model = in_scope(split, trained_alone()[1])
    endless = of_dataset("unbatched").repeat()
    with pytest.raises(BadInput, match="never ends"):
        split.fit(model, endless, verbose=0)
    history = split.fit(model, endless, steps_per_epoch=2, epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2


def test_evaluate_and_predict_are_one_devices_and_in_order(tensorflow: Any) -> None:
    alone, _ = trained_alone()
    split = simulated((3, 90, 7))
    model = in_scope(split, alone.get_weights())
    for count in (240, 102):
        expected = alone.evaluate(X[:count], Y[:count], verbose=0, return_dict=True)
        assert split.evaluate(model, X[:count], Y[:count], verbose=0, return_dict=True) == pytest.approx(
            expected, abs=1e-6
        )
    for count in (240, 101, 2):
        assert split.predict(model, X[:count], verbose=0) == pytest.approx(alone.predict(X[:count], verbose=0))


def test_validation_and_callbacks_are_keras_own(tensorflow: Any) -> None:
    import keras

    split = simulated((70, 30))
    model = in_scope(split, trained_alone()[1])
    early = keras.callbacks.EarlyStopping("val_loss", min_delta=10.0, patience=1)
    history = split.fit(model, X, Y, epochs=9, verbose=0, validation_data=(X[:33], Y[:33]), callbacks=[early])
    assert len(history.history["val_accuracy"]) == 2
    assert history.model is model


def test_a_saved_model_needs_no_gpubalance(tensorflow: Any, tmp_path: Path) -> None:
    split = simulated((70, 30))
    model = in_scope(split, trained_alone()[1])
    split.fit(model, X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    code = (
        "import sys, numpy, keras; model = keras.models.load_model('model.keras');"
        "numpy.save('y.npy', model.predict(numpy.load('x.npy'), verbose=0));"
        "assert not any(name.startswith('gpubalance') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": ""})
    assert np.load(tmp_path / "y.npy") == pytest.approx(split.predict(model, X, verbose=0), abs=1e-6)


def test_a_users_own_train_step_is_what_runs(tensorflow: Any) -> None:
    import keras
    import tensorflow as tf

    def make() -> Any:
        class Own(keras.Sequential):  # type: ignore[misc]
            def train_step(self, data: Any) -> Any:
                x, y = data
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(y=y, y_pred=self(x, training=True))
                    scaled = self.optimizer.scale_loss(loss)
                grads = tape.gradient(scaled, self.trainable_weights)
                self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
                return {"share": tf.cast(tf.shape(x)[0], tf.float32)}

        from tests.training.cases import dense

        model = Own(dense())
        model.compile("adam", "sparse_categorical_crossentropy")
        return model

    alone, start = trained_alone()
    split = simulated((70, 30))
    model = in_scope(split, start, make)
    history = split.fit(model, X, Y, epochs=2, shuffle=False, verbose=0)
    assert apart(model, alone) < 1e-6
    assert history.history["share"][-1] == pytest.approx(28 * 0.7 + 12 * 0.3)


def test_a_model_from_elsewhere_is_refused_with_what_to_do(tensorflow: Any) -> None:
    split = simulated((70, 30))
    with pytest.raises(BadInput, match=r"was built outside split\.scope\(\)(.|\n)*→ with split\.scope\(\): build it"):
        split.fit(classifier()(), X, Y)
    with split.scope():
        model = classifier()()
    with pytest.raises(BadInput, match="a batch of 1 can't be shared among 2 devices"):
        split.fit(model, X, Y, batch_size=1)
    model.compile("adam", "mse")
    with pytest.raises(BadInput, match=r"was compiled outside split\.scope\(\)"):
        split.fit(model, X, Y)
    with pytest.raises(UsageError, match="1 batches and 1 micro-batches for 2 devices"):
        Split(batches=[820], simulate="2")
    with pytest.raises(UsageError, match="must not be below 0"):
        Split(batches=[10, 10], micro_batches=[5, 20], simulate="2")


def test_what_micro_batches_cannot_do_is_refused(tensorflow: Any) -> None:
    from tests.training.cases import CASES

    split = simulated((70, 30), (20, 30))
    for name in ("synchronised batch norm", "masked sentences", "reduction mean_with_sample_weight"):
        case = CASES[name]
        data = case.data(200)
        with split.scope():
            model = case.make()
        with pytest.raises(BadInput, match="micro-batches"):
            split.fit(model, *data[:2], verbose=0)


def test_a_model_that_exists_is_copied_with_all_it_has_learned(tensorflow: Any) -> None:
    import gpubalance

    alone, _ = trained_alone()
    separate_collectives()
    model = gpubalance.distribute(alone, ratios=[4, 3], simulate="2")
    for one in (alone, model):
        one.fit(X, Y, epochs=1, shuffle=False, verbose=0)
        one.fit(X, Y, batch_size=100, epochs=2, shuffle=False, verbose=0)
        one.fit(of_dataset("in other batches"), shuffle=False, verbose=0)
    assert apart(model, alone) < 1e-6
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(alone.evaluate(X, Y, verbose=0), abs=1e-6)


def hot_pair() -> Split:
    """Two equal devices, of which the first becomes slower after some seconds of training."""
    separate_collectives()
    cool = DeviceProfile(name="cool", alpha_s=0.002, beta_s=0.0004)
    hot = cool.model_copy(update={"name": "hot", "drift": (DriftPoint(from_s=0.3, factor=2.0),)})
    devices = [
        Device(index=i, uuid=f"SIM-{i}", name=p.name, memory_bytes=None, simulated=True, profile=p)
        for i, p in enumerate((hot, cool))
    ]
    return Split._of(devices, (50, 50), (50, 50), JointProfile(), "auto")


@pytest.mark.alone
def test_the_monitor_says_when_the_split_no_longer_fits(tensorflow: Any, tmp_path: Path) -> None:
    split = hot_pair()
    model = in_scope(split, trained_alone()[1])
    monitor = split.monitor(every=2, log_dir=str(tmp_path))
    with pytest.warns(UserWarning, match="no longer fits: part of the compute that is a wait for GPU:0: GPU:1"):
        split.fit(model, X, Y, epochs=10, verbose=0, callbacks=[monitor])
    assert monitor.epochs[-1].imbalance == pytest.approx(4 / 3, abs=0.1)
    assert monitor.epochs[-1].wait_s[1] > 0
    (log,) = tmp_path.iterdir()
    tags = {
        value.tag for event in tensorflow.compat.v1.train.summary_iterator(str(log)) for value in event.summary.value
    }
    assert {"gpubalance/compute_s/GPU:0", "gpubalance/wait_s/GPU:1", "gpubalance/imbalance"} <= tags


@pytest.mark.alone
def test_a_split_that_is_rebalanced_follows_its_devices(tensorflow: Any) -> None:
    alone, start = trained_alone()
    split = hot_pair()
    model = in_scope(split, start)
    monitor = split.monitor(every=1, rebalance=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        split.fit(model, X, Y, epochs=12, shuffle=False, verbose=0, callbacks=[monitor])
    assert split.global_batch == 100
    assert split.batches[0] == pytest.approx(33, abs=4)
    assert monitor.epochs[-1].imbalance < 1.1
    alone.set_weights(start)
    assert apart(model, alone) > 0


def test_importing_loads_no_tensorflow() -> None:
    code = (
        "import sys, gpubalance; split = gpubalance.Split(batches=[7, 3], simulate='2');"
        "print(split, split.global_batch, 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Split(CPU:0 CPU: 7, CPU:1 CPU: 3) 10 False"


def test_a_plan_is_loaded_with_its_devices_and_batches(tmp_path: Path) -> None:
    from gpubalance.config import PlanRequest
    from gpubalance.devices.profile import simulated_devices
    from gpubalance.errors import PlanMismatch
    from gpubalance.stages.plan import plan
    from tests.stages.probes import probe_of

    quick, four = (str(ROOT / "configs" / f"{name}.toml") for name in ("quick-pair", "four-unlike"))
    devices = simulated_devices(quick)[0]
    made = plan(probe_of(devices), devices, PlanRequest(accumulate=1, sync_s=0.0))
    path = tmp_path / "plan.json"
    path.write_text(made.model_dump_json())
    for simulate in (None, quick):
        split = load_plan(path, simulate=simulate)
        assert split.batches == made.batches
        assert split.limits == tuple(share.limit for share in made.shares)
    with pytest.raises(PlanMismatch, match="the plan is for other devices"):
        load_plan(path, simulate=four)
