"""`gpubalance run` with the real engine in a real worker, on simulated devices.

What needs no engine is in test_run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpubalance.jobs.measure.warnings import of_figures
from gpubalance.results.timing import Timing
from gpubalance.settings.settings import Settings
from tests.cli.program import SHORT, TINY_PAIR, here, typed
from tests.jobs.drawn import windows_of
from tests.stand_in import engine


@pytest.mark.usefixtures("forked")
def test_a_run_of_the_pair_tells_where_the_time_goes(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    into = typed(f"--trace {tmp_path}/traces --tensorboard {tmp_path}/logs -o {path}")
    options = (*SHORT, "--all-reduce", "one-device", *into)
    split = typed("--gpus 0 1 --batches 120 80")
    done = here("run", *TINY_PAIR, *split, *options, code=0)
    result = json.loads(path.read_text())
    first, second = result["replicas"]
    # It is each device's own time, while the total goes at the straggler's pace.
    # Here it may be later, never earlier.
    assert first["compute_s"] >= 0.008 + 0.0002 * 120 - 1e-6
    assert second["compute_s"] >= 0.008 + 0.0003 * 80 - 1e-6
    assert (first["batch"], second["batch"], result["global_batch"]) == (120, 80, 200)
    for replica in result["replicas"]:
        own = replica["compute_s"] + replica["update_s"] + replica["wait_s"]
        parts = own + result["sync_s"] + result["input_wait_s"] + result["slow_s"]
        step_s = result["step_time_s"]["median"]
        assert parts - result["excess_s"] == pytest.approx(step_s, rel=1e-4)
    even = result["baselines"]["even"]
    assert even["batches"] == [100, 100]
    rates = [one["throughput"]["median"] for one in (result, even)]
    assert result["speedup_over_even"] == pytest.approx(rates[0] / rates[1], rel=1e-5)
    # Both splits' samples, in turns on one clock.
    own_at = result["step_time_s"]["at_s"]
    even_at = even["step_time_s"]["at_s"]
    assert len(own_at) == len(result["step_time_s"]["samples"])
    assert 0 < own_at[0] < even_at[0]  # ours goes first in the first window
    assert (sorted(own_at), sorted(even_at)) == (own_at, even_at)
    assert result["schema_version"] == 1
    settings = result["settings"]
    assert (settings["xla"], settings["all_reduce"]) == (False, "one-device")
    assert result["baselines"]["solo_sum"] is None
    # TensorFlow's own trace of some steps; what is in it is tested in tests/engine/test_trace.py.
    (trace,) = (tmp_path / "traces").glob("plugins/profile/*/*.xplane.pb")
    named = set(re.findall(rb"step_num|replica_1", trace.read_bytes()))
    assert named == {b"step_num", b"replica_1"}
    assert [one["code"] for one in result["warnings"] if "trace" in one["code"]] == []
    logs = (tmp_path / "logs").glob("run-*/*")
    assert {path.name for path in logs if path.is_dir()} == {"split", "even"}
    # What the tutorial's user knows, and the summary.
    assert re.search(r"GPU:0 \[120\] +\d+ samples/s +compute", done.stderr)
    assert re.search(r"total \[200\] +\d+ samples/s", done.stderr)
    assert "the even split 100/100" in done.stdout
    assert max(map(len, done.stdout.split("\nnext: ")[0].splitlines())) <= 80


def test_what_no_split_trains_is_refused_before_it_is_measured(tmp_path: Path) -> None:
    """By the engine's verdict, which `check` has of the real one in test_check.py."""
    script = "def refused(): return {'message': 'it sums', 'remedy': 'take means'}"
    refuses = engine(tmp_path, script)
    ended = here("balance", "--simulate", "2", code=4, environment=refuses)
    assert "it sums\n  → take means" in ended.stderr
    assert "samples/s" not in ended.stderr + ended.stdout


@pytest.mark.full
def test_a_file_in_the_current_folder_trains_by_the_settings(tmp_path: Path) -> None:
    """A user's file in the current folder trains by the settings and slower than the profile."""
    (tmp_path / "mine.py").write_text(
        "import gc, sys\n"
        "import keras\n"
        # What is left out of the import of Keras is there for the user.
        "assert 'matplotlib' not in sys.modules and gc.isenabled()\n"
        "import matplotlib.pyplot\n"
        "def net():\n"
        "    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "
        "activation='softmax')])\n"
    )
    # A module of the user's that is named as one of Python's must not get in the way.
    (tmp_path / "random.py").write_text("raise RuntimeError('loaded')\n")
    # Of so little work that a step's stamps come out of turn.
    split = ("--simulate", "2", "--batches", "1", "1", "--baseline", "none")
    settings = {"input": "host", "precision": "mixed_float16"}
    settings["all_reduce"] = "hierarchical"
    options = []
    for name, value in settings.items():
        options += [f"--{name.replace('_', '-')}", value]
    asked = ("run", *split, "--model", "mine:net", "--xla", *options, *SHORT, "--json")
    done = here(*asked, code=0, cwd=tmp_path)
    result = json.loads(done.stdout)
    assert result["complete"]
    assert all(replica["compute_s"] > 0 for replica in result["replicas"])
    assert result["model"]["parameters"] == 10
    assert (settings | {"xla": True}).items() <= result["settings"].items()
    building = r"building mine:net on .*; what it prints is kept in .*-run\.log"
    assert re.search(building, done.stderr)
    late = windows_of([Timing(steps=1, seconds=1.0, input_wait_s=0.0)], late_part=1.0)
    small = Settings(model="small")  # no model is smaller
    (of_small, *_) = of_figures(small, (), [late])
    assert "larger batches" in of_small.next
    slowed = Settings(model="MobileNetV2", time_scale=16)
    (of_keras, *_) = of_figures(slowed, (), [late])
    advice = "--time-scale 32, which slows down the simulated devices"
    first = "a plan holds for one time scale: balance again with the new one"
    assert of_keras.next == f"use --model small, or {advice}; {first}"
