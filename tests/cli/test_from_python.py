"""`gpubalance.balance` in a script: the command, for functions of the script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import gpubalance
from gpubalance.cli.from_python import as_arguments
from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import BadInput, UsageError
from gpubalance.jobs.events import Event, ModelBuilt
from gpubalance.jobs.saved import save
from gpubalance.results.plan import Plan, Round
from gpubalance.settings.code import code_key
from gpubalance.settings.settings import Settings
from tests.cli.program import QUICK_PAIR
from tests.jobs.probes import done, probe_of
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.python import python
from tests.support.tiny import net

BRIEF: dict[str, Any] = {"windows": 1, "duration": 0.5, "round_duration": 0.5}
BRIEF["global_batch"] = 64
SCRIPT = f"""
import sys
import time
import keras
import numpy as np
import tensorflow as tf
import gpubalance

def build():
    return keras.Sequential([keras.Input((9,)), keras.layers.Dense(10, "softmax")])

def waits(values):  # else a pipeline that is measured keeps all cores busy
    time.sleep(0.005)
    return values

def dataset():
    data = tf.data.Dataset.from_tensors((np.ones((64, 9), "float32"), np.zeros(64, "int64"))).repeat()
    return data.map(lambda x, y: (tf.ensure_shape(tf.numpy_function(waits, [x], tf.float32), (64, 9)), y))

if __name__ == "__main__":
    pair = sys.argv[1]
    plan = gpubalance.balance(build, dataset, gpus=[0, 1], simulate=pair, output="plan.json", rounds=1, **{BRIEF})
    split = gpubalance.load_plan(plan, simulate=pair)
    assert split.batches == gpubalance.load_plan("plan.json", simulate=pair).batches
    with split.scope():
        model = build()
        model.compile("adam", "sparse_categorical_crossentropy")
    print(len(split.fit(model, dataset(), steps_per_epoch=3, verbose=0).history["loss"]), "epoch")
"""


@pytest.mark.full  # the others here are without TensorFlow
@pytest.mark.usefixtures("forked")
def test_a_script_balances_its_functions_and_trains_by_the_plan(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    settings = Settings(model="train.py:build", data="train.py:dataset")
    code = code_key(f"{script}:build", f"{script}:dataset")
    devices = simulated_devices(QUICK_PAIR)[0]
    save(altered(probe_of(devices), settings=settings, model=None, code=code))
    done = python(str(script), QUICK_PAIR, cwd=tmp_path, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "planning with the probe of" in done.stderr
    assert "next: gpubalance run --simulate" in done.stdout
    assert done.stdout.endswith("1 epoch\n")
    plan = Plan.model_validate_json((tmp_path / "plan.json").read_text())
    assert (plan.settings, plan.code) == (settings, code)
    assert plan.pipeline is not None


@pytest.mark.usefixtures("stand_in")
def test_a_watch_gets_what_would_be_shown(capfd: pytest.CaptureFixture[str]) -> None:
    save(probe_of(simulated_devices(QUICK_PAIR)[0]))
    events: list[Event] = []
    plan = gpubalance.balance(
        "small", simulate=QUICK_PAIR, watch=events.append, **BRIEF
    )
    assert plan.global_batch == 64
    assert done(events, Round)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("stand_in")
def test_ones_own_model_is_told_of_once_with_a_kept_probe_too() -> None:
    settings = Settings(model="tests.support.tiny:net")
    of_net = {"settings": settings, "code": code_key(settings.model, None)}
    save(altered(probe_of(simulated_devices(QUICK_PAIR)[0]), model=None, **of_net))
    events: list[Event] = []
    gpubalance.balance(net, simulate=QUICK_PAIR, watch=events.append, **BRIEF)
    told = [event for event in events if isinstance(event, ModelBuilt)]
    assert [event.settings.model for event in told] == [settings.model]


@pytest.mark.usefixtures("own_processes", "stand_in")
def test_an_interrupt_leaves_no_worker() -> None:
    save(probe_of(simulated_devices(QUICK_PAIR)[0]))

    def watch(event: Event) -> None:
        if done([event], Round):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gpubalance.balance("small", simulate=QUICK_PAIR, watch=watch, **BRIEF)
    assert not psutil.Process().children()


def _outer() -> Callable[[], Any]:
    def inner() -> None:
        pass

    return inner


def typed() -> Callable[[], Any]:
    """A function as typed at a prompt or in a notebook."""
    place: dict[str, Any] = {"__name__": __name__}
    exec(compile("def build(): ...", "<stdin>", "exec"), place)  # noqa: S102
    return place["build"]  # type: ignore[no-any-return]


@cases(
    "build, options, kind, says",
    (lambda: None, {}, BadInput, "<lambda> is not"),
    (_outer(), {}, BadInput, "_outer.<locals>.inner is not"),
    (typed(), {}, BadInput, "; build is not"),
    (net, {"data": 3}, BadInput, "a value of type int is not"),
    (net, {"gpus": {0: 1}}, UsageError, "there is no device"),
    (net, {"windows": 0}, UsageError, "windows='0' should be greater than or "),
    (net, {"margin": "x"}, UsageError, "'x' is not a size"),
    (net, {"global_batch": 20}, UsageError, "(batch_multiple=)\n  → batch_multiple=4 "),
    (net, {"output": __file__}, UsageError, "give another output=, or overwrite=True"),
    (net, {"globalbatch": 8}, TypeError, "did you mean global_batch?"),
    (net, {"windoes": 3}, TypeError, "command or option: did you mean windows?"),
)
def test_what_can_not_be_balanced_is_said_in_a_sentence(
    build: Any, options: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind) as error:
        gpubalance.balance(build, **{"simulate": 2, **options})
    assert says in str(error.value)


def test_options_of_a_remedy_are_named_as_arguments() -> None:
    flags = {name: SimpleNamespace(is_flag=False) for name in ("margin", "max-batch")}
    known = {**flags, "overwrite": SimpleNamespace(is_flag=True)}
    text = "a smaller --max-batch or --margin 1GiB; another -o, or --overwrite"
    named = "a smaller max_batch= or margin=1GiB; another output=, or overwrite=True"
    assert as_arguments(text, known) == named
