"""Each thing that can't be meant for a split or its monitor is answered by its own sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import BadInput, EnvironmentFault, UsageError
from gpubalance.jobs.plan.plan import plan
from gpubalance.settings.planning import PlanRequest
from gpubalance.training.distribute import distribute
from gpubalance.training.ensemble import Ensemble
from gpubalance.training.load import load_layers, load_plan
from gpubalance.training.split import Split
from tests.jobs.probes import QUICK, devices_of, probe_of
from tests.training.models import classifier

PROFILE = str(Path(__file__).parents[2] / "configs" / "quick-pair.toml")

EACH = "give one whole number per device, in gpus order (0 skips a device)"

BOTH = "ratios divide a batch of any size"
PAIR = {"batches": [8, 4]}
WORDS = "auto, nccl, ring, hierarchical or one-device"
ODD = "--all-reduce hierarchical drops the gradients of one device if their number is odd, and "


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, f"batches: 0 given for 2 devices → {EACH}"),
        ({"batches": [820]}, f"batches: 1 given for 2 devices → {EACH}"),
        (
            {"batches": [0.6, 0.4]},
            f"batches are a list of whole numbers, not [0.6, 0.4] → {EACH}",
        ),
        ({"batches": 200}, f"batches are a list of whole numbers, not 200 → {EACH}"),
        ({"batches": "84"}, f"batches are a list of whole numbers, not '84' → {EACH}"),
        ({"batches": [-8, 4]}, f"batches must not be below 0 → {EACH}"),
        ({"batches": [0, 0]}, f"at least one device needs a batch above 0 → {EACH}"),
        (
            PAIR | {"micro_batches": [4]},
            f"each batch needs one micro-batch, not 1 for 2 → {EACH}",
        ),
        (
            PAIR | {"micro_batches": [16, 4]},
            f"micro-batches must be from 1 to their batch, not 16 of 8 → {EACH}",
        ),
        (
            {"ratios": [0.57, 0.43]},
            f"ratios are a list of whole numbers, not [0.57, 0.43] → {EACH}",
        ),
        ({"ratios": [4]}, f"ratios: 1 given for 2 devices → {EACH}"),
        (
            PAIR | {"ratios": [2, 1]},
            f"batches and ratios can't both be given: {BOTH} → leave one of them out",
        ),
        (PAIR | {"all_reduce": "tree"}, f"all_reduce is 'tree' → give {WORDS}"),
        (PAIR | {"all_reduce": "nccl"}, "--all-reduce nccl needs GPUs → use auto"),
        (
            {"batches": [8, 0, 4, 4], "simulate": 4, "all_reduce": "hierarchical"},
            f"{ODD}3 of 4 have samples in this split → use one-device",
        ),
        (PAIR | {"simulate": -1}, "simulate=-1: from 1 to 64 devices"),
        (
            PAIR | {"simulate": True},
            "simulate=True: it is a number of plain CPU devices, or a profile file",
        ),
        (
            PAIR | {"time_scale": 8},
            "time_scale=8 slows a profile, and CPU:0 follows none → name one: "
            "simulate=PROFILE.toml",
        ),
        (
            PAIR | {"time_scale": 0},
            "time_scale is 0 → give a number above 0: time_scale=8 makes all of a profile take 8 "
            "times as long",
        ),
    ],
)
def test_a_wrong_number_has_its_sentence(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        Split(**{"simulate": 2, **given})
    assert str(caught.value).replace("\n  →", " →") == told


@pytest.mark.parametrize(
    "make", [Split, Ensemble, distribute], ids=lambda one: one.__name__
)
def test_a_time_scale_slows_the_profile_of_whatever_is_simulated(make: Any) -> None:
    """Without it a script could not follow what an error of a command advises."""
    given: dict[str, Any] = {"simulate": PROFILE, "time_scale": 8}
    if make is Split:
        devices = Split(batches=[8, 4], **given).devices
    elif make is Ensemble:
        devices = Ensemble([classifier()()], **given).devices
    else:
        devices = distribute(classifier()(), ratios=[2, 1], **given).split.devices
    usual = simulated_devices(PROFILE)[0]
    for slowed, device in zip(devices, usual, strict=True):
        assert device.profile is not None
        assert slowed.profile == device.profile.slowed(8)


def test_a_plan_of_an_odd_number_of_devices_is_not_summed_hierarchically() -> None:
    devices = devices_of(QUICK, QUICK, QUICK)
    made = plan(probe_of(devices), devices, PlanRequest(global_batch=96, sync_s=0.0))
    settings = made.settings.model_copy(update={"all_reduce": "hierarchical"})
    with (
        pytest.warns(UserWarning, match="of simulated devices"),
        pytest.raises(UsageError) as caught,
    ):
        load_plan(made.model_copy(update={"settings": settings}))
    assert caught.value.message == f"{ODD}there are 3"


def test_a_profile_that_is_missing_is_told_by_the_argument() -> None:
    with pytest.raises(
        UsageError, match=r"can't read no\.toml: .*\n  → simulate=FILE takes a profile"
    ):
        Split(batches=[8, 4], simulate="no.toml")


@pytest.mark.parametrize(
    ("load", "what"), [(load_plan, "a plan"), (load_layers, "a result of layers")]
)
def test_nothing_is_no_result(load: Callable[[Any], Any], what: str) -> None:
    with pytest.raises(
        BadInput, match=f"None is not {what}, nor the name of its file\n  → gpubalance "
    ):
        load(None)


def test_what_a_monitor_cannot_do_is_told_at_once() -> None:
    for every in (0, -1, 2.5):
        with pytest.raises(UsageError, match=f"can't stamp every {every} steps"):
            Split(batches=[8, 4], simulate=2).monitor(every=every)  # type: ignore[arg-type]


def test_a_file_that_a_monitor_cannot_write_is_told_at_once(tmp_path: Path) -> None:
    split = Split(batches=[8, 4], simulate=2)
    missing = tmp_path / "missing"
    for given in (missing / "n.json", str(tmp_path)):
        with pytest.raises(
            EnvironmentFault,
            match=f"noise={given} is no file in a folder that can be written\n",
        ):
            split.monitor(noise=given)
    assert list(tmp_path.iterdir()) == []
