"""Runs jobs on simulated devices with an engine that only counts time.

TensorFlow trains in tests that ask for both engines, and in all of these tests in the campaign.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stand_in import engine


@pytest.fixture(
    scope="module",
    params=["counted", pytest.param("trained", marks=pytest.mark.campaign)],
)
def either_engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Gives the workers of a module's tests one of two engines.

    They are that of tests/stand_in/session.py, and TensorFlow.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "counted":
            for name, value in engine(tmp_path_factory.mktemp("engine")).items():
                patch.setenv(name, value)
        yield
