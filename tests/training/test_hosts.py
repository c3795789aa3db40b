"""`launch` and `split.fit` over three processes, against stock Keras on one device."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.plan.plan import plan
from gpubalance.settings.planning import PlanRequest
from tests.cli.program import ROOT, here
from tests.jobs.probes import probe_of
from tests.support.late import keras
from tests.training.rank import build, data, go_on, train, weights_after

TWO_HOSTS = str(ROOT / "configs" / "two-hosts.toml")
TOLERANCE = 1e-5


def write_plan(folder: Path, **changes: Any) -> Path:
    """Writes a plan without sync, so that all three devices are worth it, with these changes."""
    devices, _ = simulated_devices(TWO_HOSTS)
    path = folder / "plan.json"
    made = plan(probe_of(devices), devices, PlanRequest(global_batch=144, sync_s=0.0))
    path.write_text(made.model_copy(update=changes).model_dump_json())
    return path


PLAIN = """
import sys
import numpy as np
import gpubalance
from tests.training.rank import build, data

x, y = data()
by_hand = gpubalance.Split(["alpha:0", "beta:0"], [84, 60], simulate=1, hosts=["alpha", "beta"])
for split in (gpubalance.load_plan(sys.argv[1], simulate=1), by_hand):
    with split.scope():
        model = build()
    split.fit(model, x, y, shuffle=False, verbose=0)
    print(split.batches, [float(np.abs(weight).sum()) for weight in model.get_weights()])
"""


@pytest.mark.full
def test_plain_devices_on_hosts_train(tmp_path: Path) -> None:
    paced = [simulated_devices(TWO_HOSTS)[0][number] for number in (0, 2)]
    plain, _ = simulated_devices(1, ["alpha", "beta"])
    made = plan(probe_of(paced), paced, PlanRequest(global_batch=144, sync_s=0.0))
    path = tmp_path / "plan.json"
    script = tmp_path / "train.py"
    path.write_text(made.model_copy(update={"devices": plain}).model_dump_json())
    script.write_text(PLAIN)
    words = ("launch", "--via", "env ON={host}", str(path), str(script), str(path))
    done = here(*words, environment={"PYTHONPATH": str(ROOT)}, code=0)

    model = build()
    x, y = data()
    model.fit(x, y, batch_size=144, shuffle=False, verbose=0)
    expected = [float(np.abs(weight).sum()) for weight in model.get_weights()]
    lines = done.stdout.splitlines()
    assert {line.partition(" |")[0] for line in lines} == {"alpha:0", "beta:0"}
    batches = {line.partition("| ")[2].partition(" [")[0] for line in lines}
    assert batches == {str(made.batches), "(84, 60)"}
    for line in lines:
        found = json.loads(line.partition(") ")[2])
        assert found == pytest.approx(expected, rel=TOLERANCE), line


@pytest.mark.full  # three processes; two are above
def test_fit_over_hosts_is_that_of_one_device(tmp_path: Path) -> None:
    path = str(write_plan(tmp_path))
    script = str(ROOT / "tests" / "training" / "rank.py")
    environment = {"PYTHONPATH": str(ROOT)}
    words = (path, script, str(tmp_path), TWO_HOSTS, path)
    done = here("launch", "--via", "env ON={host}", *words, environment=environment)
    assert done.returncode == 0, done.stderr

    model = build()
    expected = train(model, keras.Model.fit)
    expected |= go_on(model, keras.Model.fit, tmp_path / "alone")
    expected |= weights_after(build(normalised=False), keras.Model.fit)
    found = [np.load(tmp_path / f"{rank}.npz") for rank in range(3)]
    for name, value in expected.items():
        assert np.max(np.abs(found[0][name] - value)) < TOLERANCE, name
        assert all((item[name] == found[0][name]).all() for item in found), name
    # A split that is rebalanced is so in the same step of all of them.
    changed = re.findall(r"(.*) \| (changed in step \d+: 48/48/48 → .*)", done.stdout)
    assert len(changed) == 3
    assert len({line for _, line in changed}) == 1
    weights = [name for name in found[0] if name.startswith("rebalanced")]
    assert weights
    for name in weights:
        assert all((item[name] == found[0][name]).all() for item in found), name
    # What the monitor measured is of all devices, in every process.
    for item in found:
        assert item["compute_s"] == pytest.approx(found[0]["compute_s"])
        assert len(item["compute_s"]) == 3
        # 0.010 by the profile, of the stamps of the shortest step
        assert item["sync_s"] >= 0.008
    # The first process writes; the others have taken part.
    written = {path.name for path in (tmp_path / "by-0").iterdir()}
    assert written == {"best.keras", "log.csv", "backup", "saved.keras"}
    assert not list((tmp_path / "by-1").iterdir())
    assert not list((tmp_path / "by-2").iterdir())
    said = done.stdout
    for label in ("alpha:0", "alpha:1", "beta:0"):
        # After the second batch, and after two epochs of five, all end where one ended.
        for steps in (2, 10):
            assert f"{label} | ended after {steps} steps" in said
        assert said.count(f"{label} | evaluated 2 batches") == 2
        refused = f"{label} | refused: the data "
        assert f"{refused}of alpha:1, beta:0 is not that of alpha:0" in said
        unlike = f"{refused}is not as long in all processes: "
        assert f"{unlike}610 in alpha:0, 609 in alpha:1, 608 in beta:0" in said
        left = f"{unlike}the next batch has "
        assert f"{left}144 in alpha:0, 0 in beta:0" in said
        assert f"{left}34 in alpha:0, 33 in alpha:1, 32 in beta:0" in said
        before = f"{label} | refused: the processes have not trained for as many steps before: "
        assert f"{before}0 in alpha:0, 1 in alpha:1, 2 in beta:0" in said
