"""Each thing that can't be meant for a split or its monitor is answered by its own sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpubalance.errors import BadInput, EnvironmentFault, UsageError
from gpubalance.training.load import load_layers, load_plan
from gpubalance.training.split import Split


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "0 batches for 2 devices → give one for every device; 0 leaves a device out"),
        ({"batches": [820]}, "1 batch for 2 devices → give one for every device; 0 leaves a device out"),
        (
            {"batches": [0.6, 0.4]},
            "batches are whole numbers of samples, not 0.6 → give whole numbers: 4 and 3 instead of 0.57 and 0.43",
        ),
        ({"batches": [-8, 4]}, "batches can't be below 0, as -8 is → 0 leaves a device out"),
        ({"batches": [0, 0]}, "all batches are 0, so no device would train → give at least one device more than 0"),
        (
            {"batches": [8, 4], "micro_batches": [4]},
            "1 micro-batch for 2 devices → give one for every device: its whole batch, where it takes that in "
            "one piece",
        ),
        (
            {"batches": [8, 4], "micro_batches": [16, 4]},
            "a device with a batch of 8 can't take it in micro-batches of 16 → give from 1 to 8; 8 takes it in "
            "one piece",
        ),
        ({"batches": 200}, "batches are a list, one for each device, not 200 → batches=[…, …] for 2 devices"),
        (
            {"batches": 200, "simulate": 1},
            "batches are a list, one for each device, not 200 → batches=[…] for 1 device",
        ),
        (
            {"batches": [8, 4], "ratios": [2, 1]},
            "batches and ratios can't both be given: ratios divide a batch of any size → leave one of them out",
        ),
        ({"batches": [8, 4], "simulate": -1}, "simulate=-1: from 1 to 64 devices"),
        (
            {"batches": [8, 4], "simulate": True},
            "simulate=True: it is a number of plain CPU devices, or a profile file",
        ),
    ],
)
def test_a_number_that_is_wrong_gets_its_own_sentence(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        Split(**{"simulate": 2, **given})
    assert str(caught.value).replace("\n  →", " →") == told


def test_wrong_ratios_are_called_ratios() -> None:
    with pytest.raises(UsageError, match=r"ratios are whole numbers, not 0\.57"):
        Split(ratios=[0.57, 0.43], simulate=2)  # type: ignore[list-item]
    with pytest.raises(UsageError, match="1 ratio for 2 devices"):
        Split(ratios=[4], simulate=2)


def test_a_profile_that_is_missing_is_told_by_the_argument() -> None:
    with pytest.raises(BadInput, match=r"can't read the profile no\.toml: .*\n  → simulate=FILE takes a profile"):
        Split(batches=[8, 4], simulate="no.toml")


@pytest.mark.parametrize(("load", "what"), [(load_plan, "a plan"), (load_layers, "a result of layers")])
def test_nothing_is_no_result(load: Callable[[Any], Any], what: str) -> None:
    with pytest.raises(BadInput, match=f"None is not {what}, nor the name of its file\n  → gpubalance "):
        load(None)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"every": 0}, "can't stamp every 0 steps"),
        ({"every": -1}, "can't stamp every -1 steps"),
        ({"every": 2.5}, r"can't stamp every 2\.5 steps"),
        ({"noise": 5}, "noise is True, False or a file's name, not 5"),
    ],
)
def test_what_a_monitor_cannot_do_is_told_at_once(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Split(batches=[8, 4], simulate=2).monitor(**given)


def test_a_file_that_a_monitor_cannot_write_is_told_at_once(tmp_path: Path) -> None:
    split, missing = Split(batches=[8, 4], simulate=2), tmp_path / "missing"
    with pytest.raises(EnvironmentFault, match=f"can't write noise={missing}/n.json: No .*\n  → mkdir -p {missing}$"):
        split.monitor(noise=missing / "n.json")
    with pytest.raises(EnvironmentFault, match=f"noise={tmp_path} is a folder"):
        split.monitor(noise=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
