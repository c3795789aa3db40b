"""These tests train in this process, with TensorFlow set up for eight CPU devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def _tensorflow(tensorflow: Any) -> None:
    """Before any fixture of a module."""


@pytest.fixture(autouse=True)
def _policy(tensorflow: Any) -> Iterator[None]:
    """Fails a test that leaves another policy of precision to the next one."""
    import keras

    yield
    assert keras.config.dtype_policy().name == "float32"
