"""Each thing that can't be meant for a split or its monitor is answered by its own sentence."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import EnvironmentFault, UsageError
from gpubalance.results.layers import Layers
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.cluster import Cluster, tf_config
from gpubalance.settings.device import JointProfile
from gpubalance.system.files import read_toml
from gpubalance.training.distribute import distribute
from gpubalance.training.ensemble import Ensemble
from gpubalance.training.split import Split, load_layers, load_plan
from tests.cli.program import QUICK_PAIR
from tests.jobs.probes import QUICK, devices_of
from tests.render.samples import DATA
from tests.support.known import known
from tests.support.told import refused, warned, warnings_of
from tests.training.models import classifier
from tests.training.plans import planned
from tests.training.test_hosts import TWO_HOSTS

EACH = " → give one whole number per device, in gpus order (0 leaves a device out)"
ODD = "--all-reduce hierarchical drops one device's gradients if the number of devices is odd, and "
REFUSED = read_toml(Path(__file__).with_name("refused.toml"), "table of refusals")


@pytest.mark.parametrize("told", REFUSED)
def test_a_wrong_number_has_its_sentence(told: str) -> None:
    with pytest.raises(UsageError) as caught:
        Split(**{"simulate": 2, **REFUSED[told]})
    text = str(caught.value).replace("\n  →", " →")
    assert text.replace(EACH, " → EACH").replace(ODD, "ODD ") == told


def test_a_time_scale_slows_the_profile_of_whatever_is_simulated() -> None:
    """Without it a script could not follow what an error of a command advises."""
    given: dict[str, Any] = {"simulate": QUICK_PAIR, "time_scale": 8}
    usual = [known(one.profile) for one in simulated_devices(QUICK_PAIR)[0]]
    copy = distribute(classifier()(), ratios=[2, 1], **given)
    ensemble = Ensemble([classifier()()], **given)
    for made in (Split(batches=[8, 4], **given), ensemble, copy.split):
        profiles = [device.profile for device in made.devices]
        assert profiles == [profile.slowed(8) for profile in usual]


def test_a_plan_of_an_odd_number_of_devices_is_not_summed_hierarchically() -> None:
    devices, own = devices_of(QUICK, QUICK, QUICK), {"all_reduce": "hierarchical"}
    plan_of_three = planned(devices, own, global_batch=96, sync_s=0.0)
    with warned("for simulated devices"), refused(f"{ODD}there are 3", UsageError):
        load_plan(plan_of_three)


def test_of_several_processes_the_first_one_writes(tmp_path: Path) -> None:
    devices, shares = devices_of(QUICK, QUICK), BatchSplit((4, 4))
    for rank, is_first in ((0, True), (1, False)):
        cluster = Cluster(addresses=("a:1", "b:2"), rank=rank)
        split = Split.of(devices, shares, JointProfile(), cluster=cluster)
        assert split.is_first == is_first
        no_file = refused("is not a file in a folder that", EnvironmentFault)
        with no_file if is_first else nullcontext():
            split.monitor(noise=tmp_path / "missing" / "noise.json")


def test_of_several_processes_the_first_one_warns_of_simulated_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = planned(simulated_devices(TWO_HOSTS)[0], global_batch=144, sync_s=0.0)
    for rank in range(3):
        cluster = Cluster(addresses=("a:1", "a:2", "b:3"), rank=rank)
        for name, value in tf_config(cluster).items():
            monkeypatch.setenv(name, value)
        texts = warnings_of(lambda: load_plan(plan))
        assert len(texts) == (rank == 0)


def test_a_profile_that_is_missing_is_told_by_the_argument() -> None:
    no_profile = r"can't read no\.toml: .*\n  → simulate takes the file of a profile"
    with refused(no_profile, UsageError):
        Split(batches=[8, 4], simulate="no.toml")


def test_a_simulated_result_that_is_no_file_is_told_by_what_it_is() -> None:
    cut = Layers.model_validate_json((DATA / "pair-layers.json").read_text())
    kinds: Any = {
        "the plan": (load_plan, planned()),
        "the result of gpubalance layers": (load_layers, cut),
    }
    for what, (load, result) in kinds.items():
        with warned(rf"^{what} is for simulated devices \(GPU:0 "):
            load(result)


def test_nothing_is_no_result() -> None:
    kinds: Any = {"a plan": load_plan, "a result of layers": load_layers}
    for what, load in kinds.items():
        with refused(
            f"None is neither {what} nor the name of a file that contains one\n  → gpubalance "
        ):
            load(None)


def test_what_a_monitor_cannot_do_is_told_at_once(tmp_path: Path) -> None:
    """Steps that it can't stamp, and a file that it can't write."""
    split = Split(batches=[8, 4], simulate=2)
    every: Any
    for every in (0, -1, 2.5):
        with refused(f"every={every} is not possible", UsageError):
            split.monitor(every=every)
    for given in (tmp_path / "missing" / "n.json", str(tmp_path)):
        no_file = f"noise={given} is not a file in a folder that exists and can be written to\n"
        with refused(no_file, EnvironmentFault):
            split.monitor(noise=given)
    assert list(tmp_path.iterdir()) == []
