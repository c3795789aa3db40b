"""Each number of a split that can't be one is answered by its own sentence."""

from __future__ import annotations

from typing import Any

import pytest

from gpubalance.errors import UsageError
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
            {"batches": [8, 4], "ratios": [2, 1]},
            "batches and ratios can't both be given: ratios divide a batch of any size → leave one of them out",
        ),
        ({"batches": [8, 4], "simulate": -1}, "--simulate -1: from 1 to 64 devices"),
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
