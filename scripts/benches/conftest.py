"""Gives each test of a bench its own state, with Hypothesis and TensorFlow set up as in tests/."""

from __future__ import annotations

from tests.conftest import _state, own_state

__all__ = ["_state", "own_state"]
