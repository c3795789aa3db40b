"""Which GPUs of this host are equal, by what NVML says of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubalance.devices import selection
from gpubalance.devices.nvml import read
from tests.stand_in import TWO_UNLIKE_GPUS, environment, loaded
from tests.support.cases import cases

TWO_EQUAL_GPUS = (
    TWO_UNLIKE_GPUS.replace("GTX 1080\n", "GTX 1080 Ti\n")
    .replace("8589934592 8500000000", "11811160064 11000000000")
    .replace("gpu 1 power_limit 180000", "gpu 1 power_limit 250000")
)


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    """NVML is asked once a process."""
    selection._speed_facts.cache_clear()
    yield
    selection._speed_facts.cache_clear()


def first_equal(folder: Path, gpus: str = TWO_EQUAL_GPUS) -> list[int]:
    with loaded(environment(folder, gpus)):
        return selection.first_equal([gpu.device for gpu in read().gpus])


def test_cards_of_a_name_and_memory_are_equal_whatever_is_free(tmp_path: Path) -> None:
    """Cards of one name and memory are equal though one has less free memory."""
    assert first_equal(tmp_path) == [0, 0]
    assert first_equal(tmp_path, gpus=TWO_UNLIKE_GPUS) == [0, 1]


@cases(
    "told, differs",
    ("gpu 1 power_limit 250000", "gpu 1 power_limit 200000"),
    ("gpu 1 max_clock_sm 1911", "gpu 1 max_clock_sm 2000"),
    ("gpu 1 capability 6 1", "gpu 1 capability 7 5"),
    ("gpu 1 cores 2560", "gpu 1 max_link_width 4"),
    ("gpu 1 max_clock_sm 1911", "gpu 1 error max_clock_sm 3"),
)
def test_a_slower_card_is_another_one(tmp_path: Path, told: str, differs: str) -> None:
    assert first_equal(tmp_path, gpus=TWO_EQUAL_GPUS.replace(told, differs)) == [0, 1]
