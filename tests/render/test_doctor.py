"""A checkup on 80 and on 40 columns, whole, and coloured only by what paints it."""

from __future__ import annotations

from typing import Any

import pytest

from gpubalance.render.checkup import checkup_text
from gpubalance.results.checkup import Check, Checkup
from tests.render.golden import WIDTHS, path
from tests.support.altered import altered


def checked(what: str, status: Any, detail: str, next_: str | None = None) -> Check:
    code = what.replace(" ", "-")
    return Check(code=code, status=status, what=what, detail=detail, next=next_)


STARTS = "the driver restarts the GPU for each process, which takes seconds"
DIED = "GPU:1: the worker was ended by SIGABRT \x1b[31mwhile training"
LOG = "/home/somebody/.local/state/gpubalance/logs/check.log"
OFF = f"GPU:0 has persistence mode off: {STARTS}"
CHECKS = (
    checked("driver", "ok", "550.54.14, for CUDA up to 12.4"),
    checked("persistence", "warning", OFF, "sudo nvidia-smi -i 0 -pm 1"),
    checked(
        "training step", "failure", DIED, f"do this\nthe worker's whole log is {LOG}"
    ),
    checked("all-reduce", "skipped", "not tried: there is only one device"),
)
CHECKUP = Checkup(created="2026-11-21T12:00:00+00:00", devices=(), checks=CHECKS)


@pytest.mark.parametrize("columns", WIDTHS)
def test_it_is_whole_at_80_and_at_40_columns(columns: int) -> None:
    """It is whole at 80 and at 40 columns and colour adds nothing but colour."""
    text = checkup_text(CHECKUP, columns)
    assert text + "\n" == path("checkup", columns).read_text(encoding="utf-8")

    def paint(status: str, word: str) -> str:
        return f"<{status}>{word}</>"

    painted = checkup_text(CHECKUP, columns, paint)
    for check in CHECKUP.checks:
        assert painted.count(f"<{check.status}>{check.status}") == 1
        painted = painted.replace(f"<{check.status}>", "")
    assert painted.replace("</>", "") == text


def test_when_nothing_is_wrong_it_says_so_and_when_cut_short_too() -> None:
    good = altered(CHECKUP, checks=CHECKUP.checks[:1])
    assert checkup_text(good).startswith("nothing is wrong: 1 ok\n")
    assert checkup_text(altered(good, complete=False)).startswith("1 ok; cut short\n")
