"""A machine of two unlike GPUs.

Where there can be none, all tests of this folder are skipped, with one line.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_gpu.build import NoFakeGpus, needed
from tests.fake_gpu.machine import Gpu, fake_gpus

OF_CARD = ("max_link_width 16", "max_link_generation 4", "link_generation 4")
FULL, NARROW = (*OF_CARD, "link_width 16"), (*OF_CARD, "link_width 4")
FASTER = Gpu("NVIDIA GeForce RTX 3060", 3 << 30, 4.0, 2.0, kernel_ms=0.2, more=FULL)
SLOWER = Gpu("NVIDIA GeForce RTX 3050", 2 << 30, 2.0, 1.0, kernel_ms=0.4, more=NARROW)


@pytest.fixture
def two_gpus(tmp_path: Path) -> dict[str, str]:
    """The variables of a process on a machine of two GPUs.

    The first is twice as fast, and has half as much memory again.
    """
    return fake_gpus(tmp_path, FASTER, SLOWER)


def pytest_itemcollected(item: pytest.Item) -> None:
    """All are of the second tier: the plugin takes a compiler, and each process TensorFlow."""
    item.add_marker(pytest.mark.full)


def pytest_runtest_setup() -> None:
    try:
        needed()
    except NoFakeGpus as why:
        pytest.skip(str(why))
