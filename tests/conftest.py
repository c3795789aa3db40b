"""Gives every test its own home and state, and eight CPU devices if it asks for TensorFlow."""

from __future__ import annotations

import gc
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.stand_in import engine
from tests.support import forks
from tests.support.in_process import Program, apart, program

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

LOGICAL_DEVICES = 8

# On shared machines a slow example means nothing. Examples are the same each time, so that a change
# causes a failure; `scripts/test --hypothesis-profile=drawn tests/planning` tries many new ones.
settings.register_profile("drawn", deadline=None, max_examples=500)
settings.register_profile("here", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("here")


@pytest.fixture(scope="session", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What fixtures of a module write is not the user's: `balance` would plan with their probes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Puts logs and results of workers into the test's own folder."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture
def own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes no process of the test a fork: for tests of what processes do. Name it first."""
    for name, value in forks.none().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def engine_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], None]:
    """A function that gives the workers an engine that follows a script.

    See tests/stand_in/session.py for such scripts.
    """
    folder = tmp_path_factory.mktemp("engine")

    def use(script: str) -> None:
        for name, value in engine(folder, script).items():
            monkeypatch.setenv(name, value)

    return use


@pytest.fixture
def stand_in(engine_that: Callable[[str], None]) -> None:
    """Gives the test's workers an engine without TensorFlow."""
    engine_that("")


@pytest.fixture
def forked() -> Iterator[None]:
    """Makes the test's workers, and the scripts that it starts, forks that have TensorFlow."""
    with forks.forking():
        yield


@pytest.fixture
def in_process(tmp_path: Path) -> Iterator[Program]:
    """The program's own main() in this process, without workers.

    It is for what is refused before a worker is needed.
    """
    with apart(tmp_path):
        yield program


@pytest.fixture(scope="session")
def tensorflow() -> Any:
    """TensorFlow, set up once for the whole test process."""
    # Collecting garbage takes a third of this time, though nothing is freed
    gc.disable()
    import keras  # noqa: F401
    import tensorflow as tf

    gc.freeze()
    # What traces leave behind comes in such numbers, and is looked through each time.
    gc.set_threshold(100_000, 50, 50)
    gc.enable()

    tf.config.threading.set_inter_op_parallelism_threads(LOGICAL_DEVICES + 2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * LOGICAL_DEVICES
    )
    return tf


# TensorFlow keeps graphs of tests that are over, and each search for garbage goes through them.
_OFTEN = 8  # tests
_ended = itertools.count(1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Sets aside what is kept, which saves a third of the time of tests that train."""
    if "tensorflow" in sys.modules and next(_ended) % _OFTEN == 0:
        gc.collect()
        gc.freeze()


def pytest_collection_finish() -> None:
    """Each of xdist's processes collects all tests: none may take seconds for that."""
    if "tensorflow" in sys.modules:
        raise pytest.UsageError(
            "a module of tests loads TensorFlow where it is imported: see tests/support/late.py"
        )
