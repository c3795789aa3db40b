"""A TensorFlow or Keras newer than what was tested is used, named once, and blamed for a bug."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubalance.devices.machine import find_machine, machine_warnings
from gpubalance.remedies import known_error
from gpubalance.system import versions
from gpubalance.system.versions import built_for, numbers, untested
from gpubalance.workers.failures import error_of, failed_reply
from tests.support.cases import cases
from tests.support.told import warnings_of


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> str:
    """The Keras here is newer than what was tested."""
    monkeypatch.setitem(versions.TESTED, "Keras", ((3, 10), (3, 11)))
    return f"tested with Keras 3.10 to 3.11, not with {versions.software().keras}"


@cases(
    "build, versions",
    ({"cuda_version": "12.5.1", "cudnn_version": "9", "is_cuda_build": True}, "12 9"),
    ({"is_cuda_build": True}, "12 9"),  # as TensorFlow 2.22.0rc0 has it
    ({"is_cuda_build": False}, ""),
)
def test_what_a_build_of_tensorflow_is_for(
    build: dict[str, object], versions: str
) -> None:
    majors = [numbers(version)[0] for version in built_for(build) if version]
    assert " ".join(map(str, majors)) == versions


@cases(
    "tensorflow, keras, newer",
    ("2.21.0", "3.12.0", None),
    ("2.22.0rc0", "3.16.0.dev2026102704", None),
    ("2.22.3", "3.17.0", "Keras 3.12 to 3.16, not with 3.17.0"),
    ("2.23.0", "3.15.1", "TensorFlow 2.20 to 2.22, not with 2.23.0"),
    ("3.0.0", "4.0.0", "Keras 3.12 to 3.16, not with 4.0.0"),
    (None, None, None),
)
def test_which_version_is_newer_than_all_that_were_tested(
    tensorflow: str, keras: str, newer: str | None
) -> None:
    found = untested(tensorflow, keras)
    wanted = None if newer is None else f"gpubalance was tested with {newer}"
    assert (found and found.text) == wanted


def test_the_remedy_takes_the_newest_that_was_tested() -> None:
    found = untested("2.23.0", "3.15.1")
    assert found is not None
    assert found.remedy == "pip install 'tensorflow>=2.20,<2.23'"


def test_a_command_warns_of_an_untested_version(newer: str) -> None:
    machine = find_machine(simulate="2")
    (told,) = machine_warnings(machine, machine.devices, strict=False)
    assert told.code == "untested-version"
    assert newer in told.message
    remedy = "pip install 'keras>=3.10,<3.12', if something fails or looks wrong"
    assert told.next == remedy


def test_a_bug_with_an_untested_version_is_probably_its(newer: str) -> None:
    with pytest.raises(KeyError) as caught:
        known_error("operation_fn")  # raised in gpubalance's own code
    told = error_of(failed_reply(caught.value, None, tuple), [], None, Path("log"))
    assert told.message == "KeyError: 'operation_fn'"
    assert told.cause == f"probably that version: gpubalance was {newer}"
    assert told.remedy == "pip install 'keras>=3.10,<3.12'"


def test_a_script_is_warned_of_an_untested_version_once(newer: str) -> None:
    from gpubalance.engine import replicas

    replicas._warn_of_untested.cache_clear()
    told = warnings_of(lambda: [replicas._warn_of_untested() for _ in range(2)])
    assert [newer in text for text in told] == [True]
    replicas._warn_of_untested.cache_clear()
