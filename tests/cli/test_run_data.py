"""`gpubalance run --data`: whether the user's pipeline keeps up, and what is said where it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.program import here

# A pipeline of 40 samples/s in front of devices that take 8 in 0.1 s. It never ends, so no cache holds it.
FILE = """
import time
import numpy as np
import tensorflow as tf

def waits(values):
    time.sleep(0.025)
    return values

def decode(x, y):
    return tf.ensure_shape(tf.numpy_function(waits, [x], tf.float32), (28, 28, 1)), y

def samples():
    images = np.zeros((300, 28, 28, 1), "float32")
    return tf.data.Dataset.from_tensor_slices((images, np.zeros(300, "int64"))).repeat()

def net():
    import keras

    layers = keras.layers.Flatten(), keras.layers.Dense(10, "softmax")
    return keras.Sequential([keras.Input((28, 28, 1)), *layers])

def slow():
    return samples().map(decode).batch(4)

"""
DEVICE = '[[device]]\nname = "Slow {}"\nalpha_s = 0.1\nbeta_s = 0.00001\n'


def run(folder: Path, function: str) -> tuple[dict[str, Any], str]:
    """The result and the summary of a run."""
    (folder / "mine.py").write_text(FILE)
    (folder / "pair.toml").write_text("\n".join(map(DEVICE.format, "AB")))
    split = ("--simulate", "pair.toml", "--batches", "4", "4", "--baseline", "none", "--model", "mine.py:net")
    brief = ("--windows", "1", "--duration", "1", "-o", "run.json", "--overwrite")
    done = here("run", *split, *brief, "--data", f"mine.py:{function}", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "with batches held on the devices: " in done.stderr
    result: dict[str, Any] = json.loads((folder / "run.json").read_text())
    assert result["settings"]["data"] == f"mine.py:{function}"
    return result, done.stdout


def test_a_slow_pipeline_is_named_first_with_the_line_to_change(tmp_path: Path) -> None:
    result, summary = run(tmp_path, "slow")
    pipeline = result["pipeline"]
    assert pipeline["binds"]
    assert pipeline["alone"]["median"] <= 40  # a sleep is never shorter
    assert pipeline["held"]["median"] > 1.5 * pipeline["alone"]["median"]
    assert result["throughput"]["median"] < 1.1 * pipeline["alone"]["median"]
    assert result["input_wait_s"] > result["step_time_s"]["median"] / 4
    line = 1 + FILE.splitlines().index("    return samples().map(decode).batch(4)")
    (remedy,) = pipeline["remedies"]
    assert remedy == {"where": f"mine.py, line {line}", "what": "map(…, num_parallel_calls=tf.data.AUTOTUNE)"}
    assert summary.startswith("your input pipeline gives ")
    assert "num_parallel_calls=tf.data.AUTOTUNE" in summary
    assert "waiting\n  for input" in summary or "waiting for input" in summary
    assert max(map(len, summary.split("\nnext: ")[0].splitlines())) <= 80
    # The devices wait from the end of a step until their data is there, and no longer.
    assert {"stamps-cost", "parts-exceed-step"}.isdisjoint(warning["code"] for warning in result["warnings"])
