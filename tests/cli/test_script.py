"""What a plan's training looks like in a script: the printed lines, and the file of --script."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpubalance.cli.balance import write_script
from gpubalance.cli.next_command import uses
from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.plan.plan import plan
from gpubalance.results.plan import Plan
from gpubalance.settings.planning import PlanRequest
from tests.cli.program import QUICK_PAIR, here
from tests.jobs.probes import probe_of
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.python import python

TRAIN = """
import keras, numpy as np, tensorflow as tf

samples = tf.data.Dataset.from_tensor_slices((np.zeros((48, 4), "float32"), np.zeros(48)))  # which uses TensorFlow

def build():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

def arrays():
    return np.zeros((48, 4), "float32"), np.zeros(48), np.ones(48)

def bare():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

made = samples.batch(16)
typed: tf.data.Dataset = made
train, val = made, made
if len(made) == 3:
    chosen = made
late = lambda: [part for typed in made for part in typed]
try:
    from elsewhere import of_a_try
except ImportError:
    def of_a_try(): return arrays()
"""


def planned(model: str, data: str | None) -> Plan:
    devices = simulated_devices(QUICK_PAIR)[0]
    made = plan(probe_of(devices), devices, PlanRequest(global_batch=24, sync_s=0.0))
    return altered(made, settings=altered(made.settings, model=model, data=data))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's file in a folder of its own, in which the program is started."""
    monkeypatch.chdir(tmp_path)
    Path("my/code").mkdir(parents=True)
    Path("my/code/train.py").write_text(TRAIN)
    return tmp_path


OWN = ("typed", "train", "val", "chosen", "made")
FUNCTIONS = ("arrays", "late", "of_a_try")
FILE = "my/code/train.py"
IN_FILE = f"build()  # of {FILE},"


@cases(
    "model, data, of, given",
    *((f"{FILE}:build", f"{FILE}:{name}", IN_FILE, f"{name},") for name in OWN),
    *((f"{FILE}:build", f"{FILE}:{name}", IN_FILE, f"{name}()") for name in FUNCTIONS),
    ("my.module:build", "my.module:data", "build()  # of my.module,", "data()"),
    ("small", None, "build_model()  # balance yours first,", "dataset,"),
)
@pytest.mark.usefixtures("project")
def test_the_printed_lines_have_the_names_that_were_given(
    model: str, data: str | None, of: str, given: str
) -> None:
    split, scope, fit = uses(planned(model, data), "2", Path("plan.json"))[1]
    assert split == "split = gpubalance.load_plan('plan.json', simulate='2')"
    assert f"model = {of}" in scope
    assert f"fit(model, {given}" in fit


@pytest.mark.usefixtures("forked")
@cases(
    "build, data, ends",
    (f"{FILE}:build", f"{FILE}:arrays", ""),
    (f"{FILE}:build", "my.code.train:arrays", ""),
    pytest.param(f"{FILE}:build", f"{FILE}:made", "", marks=pytest.mark.full),
    (f"{FILE}:bare", f"{FILE}:made", "compile the model in bare"),
)
def test_the_script_runs_as_is(project: Path, build: str, data: str, ends: str) -> None:
    Path("train.py").write_text("not to be imported")
    made = planned(build, data)
    Path("plan.json").write_text(made.model_dump_json())
    Path("scripts").mkdir()
    script = Path("scripts/go.py")
    write_script(script, made, Path("plan.json"), QUICK_PAIR)
    done = python(str(project / script), cwd=Path("/"))
    assert done.returncode == bool(ends), done.stderr
    assert ends in done.stderr
    assert ("Epoch 10/10" in done.stdout) == (not ends)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("folder", ["\\x", '"""', 'a\\"{b}', "\\"])
def test_a_folder_with_any_signs_leaves_the_script_valid(folder: str) -> None:
    file = f"{folder}/train.py"
    made = planned(f"{file}:build", f"{file}:arrays")
    write_script(Path("go.py"), made, Path("plan.json"), QUICK_PAIR)
    script = ast.parse(Path("go.py").read_text())
    assert f"Trains build of {file} with" in str(ast.get_docstring(script))


@pytest.mark.usefixtures("project", "in_process")
def test_what_no_script_can_be_written_for_is_told_first() -> None:
    own = ("--model", "my/code/train.py:build", "--data", "my/code/train.py:made")

    def named(name: str) -> tuple[str, ...]:
        return "--model", f"my/{name}.py:build", *own[2:]

    for name in ("my-train", "class", "train"):
        Path(f"my/{name}.py").write_text(TRAIN)
    unnamed = "name both: --model train.py:build --data train.py:dataset"
    exists = "my/code/train.py exists, and --script never overwrites a file"
    by_name = "by its name"
    for options, script, says in (
        (own[:2], "go.py", unnamed),
        ((), "go.py", unnamed),
        (own, "my/code/train.py", exists),
        (named("my-train"), "go.py", f"cannot import my/my-train.py {by_name}"),
        (named("class"), "go.py", f"cannot import my/class.py {by_name}"),
        (named("train"), "go.py", "my/train.py and my/code/train.py have the same"),
    ):
        asked = (f"balance --simulate {QUICK_PAIR} --script {script}", *options)
        done = here(*asked, code=2)
        assert says in done.stderr
        assert "starting TensorFlow" not in done.stderr
