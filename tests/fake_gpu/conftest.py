"""A machine of two unlike GPUs.

Where there can be none, all tests of this folder are skipped, with one line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fake_gpu.build import NoFakeGpus, needed
from tests.fake_gpu.machine import Gpu, child, fake_gpus

FASTER = Gpu("NVIDIA GeForce RTX 3060", 3 << 30, 4.0, 2.0, kernel_ms=0.2)
SLOWER = Gpu("NVIDIA GeForce RTX 3050", 2 << 30, 2.0, 1.0, kernel_ms=0.4)


@pytest.fixture
def two_gpus(tmp_path: Path) -> dict[str, str]:
    """The variables of a process on a machine of two GPUs.

    The first is twice as fast, and has half as much memory again.
    """
    return fake_gpus(tmp_path, FASTER, SLOWER)


@pytest.fixture(scope="module")
def machine(request: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a process on a machine with the module's GPUS."""
    return fake_gpus(tmp_path_factory.mktemp("machine"), *request.module.GPUS)


@pytest.fixture(scope="module")
def told(request: Any, machine: dict[str, str]) -> Any:
    """What the module's PROGRAM, which must end well, has printed last, as JSON."""
    return json.loads(child(request.module.PROGRAM, machine).splitlines()[-1])


def pytest_itemcollected(item: pytest.Item) -> None:
    """All are of the second tier: the plugin takes a compiler, and each process TensorFlow."""
    item.add_marker(pytest.mark.full)


def pytest_runtest_setup() -> None:
    try:
        needed()
    except NoFakeGpus as why:
        pytest.skip(str(why))
