"""A training script over hosts, as a user writes one.

It is run by `gpubalance launch PLAN rank.py FOLDER PROFILE PLAN`. Each process saves what it has at
the end, for a test to compare.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gpubalance
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.workers.serve import lean_import
from tests.support.late import keras, layers, optimizers, tf

BATCH, SAMPLES, EPOCHS = 150, 610, 2  # the last batch of an epoch has 10
PART = 32  # of a batch in micro-batches


def data() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    x = random.random((SAMPLES, 16), np.float32)
    return x, (x.sum(1) > 8).astype(np.int64)


def build(*, normalised: bool = True) -> Any:
    keras.utils.set_random_seed(3)
    body = [layers.Dense(32, kernel_regularizer="l2", use_bias=False)]
    body += [layers.BatchNormalization(synchronized=True)] * normalised
    last = [layers.ReLU(), layers.Dense(2, activation="softmax")]
    model = keras.Sequential([keras.Input((16,)), *body, *last])
    loss = "sparse_categorical_crossentropy"
    model.compile(optimizers.Adam(0.01, clipnorm=0.5), loss, metrics=["accuracy"])
    return model


def train(model: Any, fit: Callable[..., Any], **more: Any) -> dict[str, Any]:
    """The weights, logs and answers of the model after some epochs."""
    x, y = data()
    options = {"epochs": EPOCHS, "shuffle": True, "verbose": 0, **more}
    options["validation_data"] = x[:200], y[:200]
    history = fit(model, x, y, batch_size=BATCH, **options)
    logs = {name: np.array(values) for name, values in history.history.items()}
    # A batch of fewer samples than devices is whole on each of them.
    few = np.array(model.evaluate(x[:2], y[:2], verbose=0))
    predicted = model.predict(x[:37], verbose=0)
    return {**weights_of(model, "weight"), **logs, "predicted": predicted, "few": few}


def weights_of(model: Any, name: str) -> dict[str, Any]:
    weights = enumerate(model.get_weights())
    return {f"{name} {number}": np.asarray(weight) for number, weight in weights}


def weights_after(model: Any, fit: Callable[..., Any]) -> dict[str, Any]:
    """The weights of a model after an epoch."""
    x, y = data()
    fit(model, x, y, batch_size=BATCH, shuffle=False, verbose=0)
    return weights_of(model, "after an epoch")


def ends(here: bool, hook: str, at: int, flag: str = "stop_training") -> Any:
    """A user's own callback that ends training in one process.

    With another `flag`, it ends what that flag of the model ends.
    """

    def end(number: int, logs: Any) -> None:
        callback.reached = number
        if here and number == at:
            setattr(callback.model, flag, True)

    callback = keras.callbacks.LambdaCallback(**{hook: end})
    return callback


def rebalanced(split: gpubalance.Split) -> dict[str, Any]:
    """The weights after a training that ends some steps after an even split was changed."""
    even = copy.copy(split)
    even.shares = BatchSplit.even(split.global_batch, len(split.devices))
    with even.scope():
        model = build(normalised=False)
    monitor = even.monitor(every=1, rebalance=True)

    def end(_: int, logs: Any) -> None:
        steps = model.optimizer.iterations.numpy()
        if monitor.changes and steps >= monitor.changes[0].step + 4:
            model.stop_training = True

    x, y = data()
    callbacks = [monitor, keras.callbacks.LambdaCallback(on_train_batch_end=end)]
    samples = tf.data.Dataset.from_tensor_slices((x, y)).repeat()
    options = {"steps_per_epoch": 1000, "shuffle": False, "verbose": 0}
    batches = samples.batch(split.global_batch)
    even.fit(model, batches, callbacks=callbacks, **options)
    change = monitor.changes[0]
    print(f"changed in step {change.step}: {change.before} → {change.after}")
    return weights_of(model, "rebalanced")


def main(folder: Path, profile: str, plan: str) -> None:
    """One process's part."""
    with lean_import():
        import keras
        import tensorflow as tf

    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    split = gpubalance.load_plan(plan, simulate=profile)
    with split.scope():
        model = build()
    monitor = split.monitor(every=2)
    written = folder / f"by-{rank}"
    written.mkdir()
    of, backup = keras.callbacks, str(written / "backup")
    callbacks = [
        of.ModelCheckpoint(str(written / "best.keras")),
        of.CSVLogger(str(written / "log.csv")),
        of.BackupAndRestore(backup, delete_checkpoint=False),
        monitor,
    ]
    found = train(model, split.fit, callbacks=callbacks)
    times = monitor.epochs[-1]
    how: dict[str, Any] = {"simulate": profile, "hosts": ["alpha", "beta"]}
    how["micro_batches"] = [min(size, PART) for size in split.batches]
    labels = [device.label for device in split.devices]
    by_hand = gpubalance.Split(labels, split.batches, **how)
    with by_hand.scope():
        local = build(normalised=False)
    found |= weights_after(local, by_hand.fit)
    found |= rebalanced(split)
    found |= {"compute_s": times.compute_s, "sync_s": times.sync_s}
    np.savez(folder / f"{rank}.npz", **found)
    model.save(written / "saved.keras")
    keras.saving.save_model(model, written / "saved-too.keras")
    model.export(written / "exported", verbose=False)
    x, y = data()
    for callbacks in (
        [ends(True, "on_train_batch_end", 1)] if rank == 1 else [],
        [ends(rank == 2, "on_epoch_end", 1)],
    ):
        model.optimizer.iterations.assign(0)
        split.fit(model, x, y, BATCH, epochs=4, verbose=0, callbacks=callbacks)
        print(f"ended after {model.optimizer.iterations.numpy()} steps")
    end = ends(rank == 1, "on_test_batch_end", 1, "stop_evaluating")
    given: Any = {"x": x, "y": y, "batch_size": BATCH, "verbose": 0, "callbacks": [end]}
    for method, more in (
        (split.fit, {"epochs": 2, "validation_data": (x, y)}),
        (keras.Model.evaluate, {}),
    ):
        method(model, **given, **more)
        print(f"evaluated {end.reached + 1} batches")
    shorter = slice(SAMPLES - rank)
    # A regrouped dataset shows its length only at its end.
    # One of the split's batches shows only the number of those.
    of_slices = tf.data.Dataset.from_tensor_slices
    regrouped = of_slices((x, y)).batch(48).take(12 - 3 * rank)
    short = x[shorter], y[shorter]
    in_batches = of_slices(short).batch(split.global_batch)
    for unlike in ((x + rank, y), short, (regrouped,), (in_batches,), ()):
        if not unlike:  # as after a backup that the other processes have not seen
            model.optimizer.iterations.assign(rank)
        try:
            split.fit(model, *(unlike or (x, y)), epochs=EPOCHS, verbose=0)
        except gpubalance.errors.BadInput as error:
            print(f"refused: {error.message}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
