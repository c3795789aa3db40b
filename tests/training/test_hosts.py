"""`launch` and `split.fit` over three processes, against stock Keras on one device."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.training.split import Split
from tests.cli.program import ROOT, here
from tests.support.altered import altered
from tests.support.late import keras
from tests.training.cases import simulated
from tests.training.plans import planned
from tests.training.rank import build, train, weights_after

TWO_HOSTS = str(ROOT / "configs" / "two-hosts.toml")
TOLERANCE = 1e-5


def write_plan(folder: Path, **changes: Any) -> Path:
    """Writes a plan without sync, so that all three devices are worth it, with these changes."""
    devices, _ = simulated_devices(TWO_HOSTS)
    path = folder / "plan.json"
    made = planned(devices, global_batch=144, sync_s=0.0)
    path.write_text(altered(made, **changes).model_dump_json())
    return path


def test_the_callbacks_of_a_list_of_keras_are_quieted_and_end_together() -> None:
    from gpubalance.training.processes import end_together, quiet

    of = keras.callbacks
    own = of.LambdaCallback(on_train_batch_end=lambda *_: None)
    model = build()
    params = {"verbose": 1, "epochs": 2, "steps": 3}
    callbacks = [of.CSVLogger("log.csv"), own]
    given = of.CallbackList(callbacks, True, True, model, **params)
    bound: dict[str, Any] = {"callbacks": given}
    quiet(bound)
    processes: Any = SimpleNamespace(any=bool)
    end_together("fit", bound, processes, model)
    found = bound["callbacks"]
    assert isinstance(found, of.CallbackList)
    assert (found.model, found.params) == (model, params)
    *others, end = found.callbacks
    assert others == [own, model.history]
    assert {"on_epoch_end", "on_train_batch_end"} <= vars(end).keys()
    assert len(given.callbacks) == 4
    # `evaluate` takes a list that has no model.
    bound = {"callbacks": of.CallbackList([of.LambdaCallback(on_test_batch_end=print)])}
    quiet(bound)
    end_together("evaluate", bound, processes, model)
    assert bound["callbacks"].callbacks[-1].model is model


@pytest.mark.parametrize("is_first", [True, False])
def test_only_the_first_process_leaves_files(
    is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = simulated((70, 30))
    monkeypatch.setattr(Split, "is_first", is_first)
    with split.scope():
        model = build(normalised=False)
    model.save(tmp_path / "0.keras")
    model.save_weights(tmp_path / "1.weights.h5")
    keras.saving.save_model(model, tmp_path / "2.keras")
    keras.models.save_model(model=model, filepath=tmp_path / "3.keras")
    model.export(tmp_path / "4", verbose=False)
    model.export(filepath=str(tmp_path / "5"), verbose=False)
    keras.saving.save_weights(model, tmp_path / "6.weights.h5")
    assert len(list(tmp_path.iterdir())) == 7 * is_first


@pytest.mark.full  # three processes
def test_fit_over_hosts_is_that_of_one_device(tmp_path: Path) -> None:
    path = str(write_plan(tmp_path))
    script = str(ROOT / "tests" / "training" / "rank.py")
    environment = {"PYTHONPATH": str(ROOT)}
    words = (path, script, str(tmp_path), TWO_HOSTS, path)
    done = here("launch", "--via", "env ON={host}", *words, environment=environment)
    assert done.returncode == 0, done.stderr

    model = build()
    expected = train(model, keras.Model.fit)
    expected |= weights_after(build(normalised=False), keras.Model.fit)
    found = [np.load(tmp_path / f"{rank}.npz") for rank in range(3)]
    for name, value in expected.items():
        assert np.max(np.abs(found[0][name] - value)) < TOLERANCE, name
        assert all((item[name] == found[0][name]).all() for item in found), name
    # A split that is rebalanced is so in the same step of all of them.
    changed = re.findall(r".* \| (changed in step \d+: 48/48/48 → .*)", done.stdout)
    assert changed == changed[:1] * 3
    for name in [name for name in found[0] if name.startswith("rebalanced")]:
        assert all((item[name] == found[0][name]).all() for item in found), name
    # What the monitor measured is of all devices, in every process.
    for item in found:
        assert item["compute_s"] == pytest.approx(found[0]["compute_s"])
        assert len(item["compute_s"]) == 3
        # 0.010 by the profile, of the stamps of the shortest step
        assert item["sync_s"] >= 0.008
    # The first process writes; the others have taken part.
    written = {path.name for path in (tmp_path / "by-0").iterdir()}
    assert written == {
        "best.keras",
        "log.csv",
        "backup",
        "saved.keras",
        "saved-too.keras",
        "exported",
    }
    assert not any(list((tmp_path / f"by-{rank}").iterdir()) for rank in (1, 2))
    said = done.stdout
    for label in ("alpha:0", "alpha:1", "beta:0"):
        # After the second batch, and after two epochs of five, all end where one ended.
        for steps in (2, 10):
            assert f"{label} | ended after {steps} steps" in said
        assert said.count(f"{label} | evaluated 2 batches") == 2
        refused = f"{label} | refused: the data "
        assert f"{refused}of alpha:1, beta:0 differs from that of alpha:0" in said
        unlike = f"{refused}differs in length between the processes: "
        assert f"{unlike}610 in alpha:0, 609 in alpha:1, 608 in beta:0" in said
        left = f"{unlike}the next batch has "
        assert f"{left}144 in alpha:0, 0 in beta:0" in said
        assert f"{left}34 in alpha:0, 33 in alpha:1, 32 in beta:0" in said
        before = f"{label} | refused: the processes have trained different numbers of steps: "
        assert f"{before}0 in alpha:0, 1 in alpha:1, 2 in beta:0" in said
