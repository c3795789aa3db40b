"""These tests train in this process, with TensorFlow set up for eight CPU devices."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def _tensorflow(tensorflow: Any) -> None:
    """Before any fixture of a module."""
