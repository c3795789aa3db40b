"""Gives the tests of benches the fixtures of tests/, and what else is set up there."""

from __future__ import annotations

from tests.conftest import (
    _state,
    engine_that,
    in_process,
    own_state,
    stand_in,
    tensorflow,
)

__all__ = [
    "_state",
    "engine_that",
    "in_process",
    "own_state",
    "stand_in",
    "tensorflow",
]
