"""These tests train in this process, with TensorFlow set up for eight CPU devices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.training.cases import has_bfloat16


@pytest.fixture(scope="session", autouse=True)
def _tensorflow(tensorflow: Any) -> None:
    """Before any fixture of a module."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    needs_bfloat16 = "bfloat16" in item.name or item.get_closest_marker("bfloat16")
    if needs_bfloat16 and not has_bfloat16():
        pytest.skip("oneDNN held to older instructions has no bfloat16")
