"""A worker, which measures, and a training script have the same settings.

Both write theirs down where the model is built, and the two are compared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.program import SHORT, gpubalance, typed
from tests.fake_gpu import child

# A user's file, with which both processes build the model. By then both have been set up.
MINE = """
import json, os, sys
import keras, tensorflow as tf
import gpubalance

OF_ENVIRONMENT = ("CUDA", "KERAS", "NVIDIA", "OMP", "TF_", "XLA")

def settings():
    threads, gpus = tf.config.threading, tf.config.list_physical_devices("GPU")
    variables = {name: value for name, value in os.environ.items() if name.startswith(OF_ENVIRONMENT)}
    return {
        "floatx": keras.config.floatx(),
        "image data format": keras.config.image_data_format(),
        "policy": keras.config.dtype_policy().name,
        "TF32": tf.config.experimental.tensor_float_32_execution_enabled(),
        "XLA": tf.config.optimizer.get_jit(),
        "graph optimizer": tf.config.optimizer.get_experimental_options(),
        "placed softly": tf.config.get_soft_device_placement(),
        "threads between operations": threads.get_inter_op_parallelism_threads(),
        "threads within one": threads.get_intra_op_parallelism_threads(),
        "memory growth": [tf.config.experimental.get_memory_growth(gpu) for gpu in gpus],
        "devices": [device.name for device in tf.config.list_logical_devices()],
        "environment": variables,
    }

def build():
    with open(os.environ["SETTINGS_OF"], "w") as file:
        json.dump(settings(), file)
    return keras.Sequential([keras.Input((9,)), keras.layers.Dense(10, "softmax", dtype="float32")])

if __name__ == "__main__":
    split = gpubalance.Split([0, 1], [16, 8], precision=sys.argv[1])
    with split.scope():
        build()
"""
# Two things differ on purpose: how much TensorFlow logs, and the backend of a worker's Keras.
ON_PURPOSE = ("TF_CPP_MIN_LOG_LEVEL", "KERAS_BACKEND")


def test_both_have_the_same_settings(tmp_path: Path, two_gpus: dict[str, str]) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    (tmp_path / "keras.json").write_text('{"image_data_format": "channels_first"}')
    variables = {**two_gpus, "KERAS_HOME": str(tmp_path)}
    measured, trained = tmp_path / "measured.json", tmp_path / "trained.json"

    own = {**variables, "SETTINGS_OF": str(measured)}
    words = "--gpus 0,1 --batches 16,8 --precision float32 --baseline none --quiet"
    run = ("run", "--model", f"{mine}:build", *typed(words), *SHORT)
    gpubalance(*run, code=0, environment=own)
    script = f"import runpy; runpy.run_path({str(mine)!r}, run_name='__main__')"
    child(script, {**variables, "SETTINGS_OF": str(trained)}, "float32")

    found, expected = settings_of(measured), settings_of(trained)
    assert found == expected
    assert found["image data format"] == "channels_first"  # the user's own
    assert found["TF32"] is False
    assert found["memory growth"] == [True, True]


def settings_of(path: Path) -> dict[str, Any]:
    """What one of them has written down."""
    found: dict[str, Any] = json.loads(path.read_text())
    for name in ON_PURPOSE:
        found["environment"].pop(name, None)
    return found
