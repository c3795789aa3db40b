"""Tests that share what takes long run in one process: see conftest.py."""

from __future__ import annotations

import pytest


def test_a_group_is_known_to_what_deals_tests_out(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("loadgroup", False):
        pytest.skip("tests run in one process here")
    assert request.node.nodeid.endswith("@tests/test_groups.py")
