"""A small part of `scripts/bench fuzz`."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from scripts.benches import fuzz
from scripts.benches.fuzz_input import talk
from tests.support.in_process import Hang, apart, within_time


@pytest.mark.full  # what it has found has tests of its own
def test_no_input_brings_about_a_traceback_a_hang_or_an_escape() -> None:
    lines = list(fuzz.main(60, seed=2026))
    assert not [line for line in lines if "FAILED" in line]
    assert lines[-1].split()[0].isdigit()


def test_a_worker_that_says_it_is_done_too_early_is_not_readable(
    tmp_path: Path,
) -> None:
    """As the campaign found it: without a stamped sample there is nothing to divide a step by."""
    lines = talk()
    with apart(tmp_path, worker="cat said 2>/dev/null"):
        before = fuzz.REACHED["measurements"]
        fuzz.messages(b"".join(lines))
        assert fuzz.REACHED["measurements"] == before + 1
        fuzz.messages(b"".join([lines[0], *lines[4:]]))
        assert fuzz.REACHED["measurements"] == before + 1


def test_a_hang_that_was_swallowed_comes_again_and_another_timer_goes_on() -> None:
    def swallows_one() -> None:
        with suppress(Hang):
            time.sleep(60)
        time.sleep(60)

    with within_time(100):
        with pytest.raises(Hang), within_time(0.01):
            swallows_one()
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 100
