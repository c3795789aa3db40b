"""A training script over hosts, as a user writes one: `gpubalance launch PLAN rank.py FOLDER PROFILE PLAN`.

Each process keeps what it has in the end; a test compares.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BATCH, SAMPLES, EPOCHS = 150, 610, 2  # the last batch of an epoch has 10


def data() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    x = random.random((SAMPLES, 16), np.float32)
    return x, (x.sum(1) > 8).astype(np.int64)


def build() -> Any:
    import keras

    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(32, kernel_regularizer="l2", use_bias=False),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.ReLU(),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(model: Any, fit: Callable[..., Any], **more: Any) -> dict[str, Any]:
    """The weights, logs and answers of the model after some epochs."""
    x, y = data()
    validation = {"validation_data": (x[:200], y[:200])}
    history = fit(model, x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=True, verbose=0, **validation, **more)
    weights = {f"weight {number}": np.asarray(weight) for number, weight in enumerate(model.get_weights())}
    logs = {name: np.array(values) for name, values in history.history.items()}
    # Fewer samples than there are devices are whole on each of them.
    few = model.evaluate(x[:2], y[:2], verbose=0)
    return {**weights, **logs, "predicted": model.predict(x[:37], verbose=0), "few": np.array(few)}


def main(folder: Path, profile: str, plan: str) -> None:
    """One process's part."""
    import keras

    import gpubalance

    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    keras.utils.set_random_seed(3)
    split = gpubalance.load_plan(plan, simulate=profile)
    with split.scope():
        model = build()
    monitor = split.monitor(every=2)
    written = folder / f"by-{rank}"
    written.mkdir()
    callbacks = [
        keras.callbacks.ModelCheckpoint(str(written / "best.keras")),
        keras.callbacks.CSVLogger(str(written / "log.csv")),
        keras.callbacks.BackupAndRestore(str(written / "backup"), delete_checkpoint=False),
        monitor,
    ]
    found = train(model, split.fit, callbacks=callbacks)
    times = monitor.epochs[-1]
    np.savez(folder / f"{rank}.npz", **found, compute_s=times.compute_s, sync_s=times.sync_s)
    model.save(written / "saved.keras")
    x, y = data()
    try:
        split.fit(model, x + rank, y, verbose=0)
    except gpubalance.errors.BadInput as error:
        print(f"refused: {error.message}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
