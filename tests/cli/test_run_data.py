"""`--data`: whether the pipeline keeps up, and ragged text.

Other kinds are in tests/engine/test_user_data.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpubalance.numbers.units import format_seconds
from gpubalance.settings.code import code_key
from tests.cli.program import QUICK_PAIR, here, one_line
from tests.faults.machine import codes_of
from tests.stand_in import engine

FILE = """
import time
import keras
import numpy as np
import tensorflow as tf

layers = keras.layers

def net():
    ids, mask = keras.Input((None,), dtype="int32", name="ids"), keras.Input((None,), name="mask")
    words = layers.Embedding(50, 16, mask_zero=True)(ids)
    words = layers.Dense(64, activation="relu")(words) * layers.Reshape((-1, 1))(mask)
    outputs = layers.Dense(2, activation="softmax")(layers.GlobalAveragePooling1D()(words))
    return keras.Model({"ids": ids, "mask": mask}, outputs, name="text")

def sentences():
    random = np.random.default_rng(1)
    for length in random.integers(3, 60, 400):
        yield random.integers(1, 50, length).astype("int32"), length % 2

def waits(ids):
    time.sleep(0.008)
    return ids

def decode(ids, label):  # 125 samples/s
    ids = tf.ensure_shape(tf.numpy_function(waits, [ids], tf.int32), (None,))
    return {"ids": ids, "mask": tf.ones(tf.shape(ids))}, label

def text():  # it never ends, so no cache holds it
    signature = tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.int64)
    data = tf.data.Dataset.from_generator(sentences, output_signature=signature).repeat()
    return data.map(decode).padded_batch(8)
"""
NAMED = ("--model", "mine.py:net", "--data", "mine.py:text")
BRIEF = ("--windows", "1", "--duration", "0.3")
# Slower than the model, and faster than the data.
DEVICE = '[[device]]\nname = "Slow {}"\nalpha_s = 0.02\nbeta_s = 0.00001\n'


def _run(folder: Path, batches: str, **how: Any) -> tuple[dict[str, Any], str]:
    (folder / "mine.py").write_text(FILE)
    (folder / "slow.toml").write_text("\n".join(map(DEVICE.format, "AB")))
    asked = "run --simulate slow.toml --baseline none -o run.json --batches"
    words = (*batches.split(), *NAMED, *BRIEF)
    done = here(asked, *words, code=0, cwd=folder, **how)
    return json.loads((folder / "run.json").read_text()), done.stdout


@pytest.mark.usefixtures("forked")
def test_a_slow_pipeline_is_named_first_with_the_line_to_change(tmp_path: Path) -> None:
    """A slow pipeline is named first with the line to change and ragged steps differ.

    One that keeps up is in test_hosts.py.
    """
    result, summary = _run(tmp_path, "5 3")
    pipeline = result["pipeline"]
    assert pipeline["binds"]
    maximum = 125  # a sleep is never shorter, and on a busy machine longer now and then
    assert pipeline["alone"]["median"] <= maximum
    assert pipeline["held"]["median"] > 1.5 * pipeline["alone"]["median"]
    assert result["throughput"]["median"] < 1.1 * maximum
    assert result["input_wait_s"] > result["step_time_s"]["median"] / 4
    line = 1 + FILE.splitlines().index("    return data.map(decode).padded_batch(8)")
    (remedy,) = pipeline["remedies"]
    what = "map(…, num_parallel_calls=tf.data.AUTOTUNE)"
    assert remedy == {"where": f"mine.py, line {line}", "what": what}
    assert summary.startswith("your input pipeline gives ")
    told = one_line(summary)
    assert "num_parallel_calls=tf.data.AUTOTUNE" in told
    assert "waiting for input" in told
    assert max(map(len, summary.split("\nnext: ")[0].splitlines())) <= 80
    # The devices wait from the end of a step until their data is there, and no longer.
    amiss = {"stamps-cost", "parts-exceed-step", "batches-joined"}
    assert amiss.isdisjoint(codes_of(result))

    spread = result["step_spread"]
    # Equal where the host has all data ready
    assert 0 < spread["p50_s"] <= spread["p95_s"]
    assert spread["steps"] >= 14
    assert result["slow_s"] == 0
    assert result["model"]["input_shapes"] == [[None], [None]]
    alike = format_seconds(spread["p50_s"]) == format_seconds(spread["p95_s"])
    steps = "their steps take the same time" if alike else "half of the steps take "
    assert f"batches differ in shape: {steps}" in told
    assert result["step_time_s"]["steps_per_sample"] % 7 == 0


def test_results_whose_steps_differ_are_compared_and_reported(tmp_path: Path) -> None:
    """One step of five is long."""
    step = "def step(devices, batches, number): return 0.01 if number % 5 else 0.05"
    own = engine(tmp_path, f"def unlike(): return True\n{step}")
    result, _ = _run(tmp_path, "5 3", environment=own)
    brief = ("--global-batch", "16", "--rounds", "1", "--round-duration", "0.3", *BRIEF)
    asked = ("balance", "--simulate", QUICK_PAIR, *NAMED, *brief, "-o", "plan.json")
    answer = here(*asked, code=0, cwd=tmp_path, environment=own).stdout
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["code"] == code_key(*(f"{tmp_path}/{name}" for name in NAMED[1::2]))
    proof = plan["balance"]["run"]
    assert 0 < proof["step_spread"]["p50_s"] < proof["step_spread"]["p95_s"]
    assert "batches differ in shape: half of the steps take " in answer
    assert max(map(len, answer.split("\nnext: ")[0].splitlines())) <= 80
    both = ("run.json", "plan.json")
    here("report", *both, "--html", "report.html", code=0, cwd=tmp_path)
    html = (tmp_path / "report.html").read_text()
    assert html.count("batches differ in shape: half of the steps take ") == len(both)
    assert "95 % take up to" in html  # what it means
    compared = one_line(here("compare", *both, cwd=tmp_path).stdout)
    assert "samples from the pipeline → held on the devices" in compared
    assert f"95 % up to {format_seconds(result['step_spread']['p95_s'])} " in compared
