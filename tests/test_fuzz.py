"""A small part of `scripts/bench fuzz`."""

from __future__ import annotations

from tests.bench import fuzz


def test_no_input_brings_about_a_traceback_a_hang_or_an_escape() -> None:
    lines = list(fuzz.main(2000, seed=2026))
    assert not [line for line in lines if "FAILED" in line]
    assert lines[-1].split()[0].isdigit()
