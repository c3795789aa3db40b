"""Whatever is refused before any device is touched gets one error.

It is in rows 26, 27, 31, 32 and 34, among others.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpubalance.results.plan import Plan
from gpubalance.results.records import read_record
from gpubalance.system.files import read_toml
from tests.cli.program import QUICK_PAIR, ROOT
from tests.render.samples import BALANCE, PROBE
from tests.support.altered import altered
from tests.support.in_process import ESCAPE, Program

NAMES = {
    "quick": shlex.quote(QUICK_PAIR),
    "hosts": shlex.quote(str(ROOT / "configs" / "two-hosts.toml")),
    "saved": ROOT / "tests" / "saved",
    "long": "x" * 10_000,
    "digits": "9" * 10_000,
}
REFUSED = read_toml(Path(__file__).with_name("refused.toml"), "table of refusals")
NO_TEXT = "'\udc80.py:build'"  # which TOML can't have
said = f"--model {NO_TEXT[1:-1]!a} should be a valid string"
REFUSED["run --simulate {quick} --quiet"].append((f"--model {NO_TEXT}", 2, said))
PLAN = read_record(BALANCE, Plan)
OF_CODE = altered(PLAN.settings, model="my net.py:build", data="my net.py:data")
PLAN_OF_CODE = altered(PLAN, settings=OF_CODE)
ROWS: list[Any] = []
for command, rows in REFUSED.items():
    ROWS += [(f"{command} {words}", *expected) for words, *expected in rows]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ascii(row[0][:60]))
def test_26_27_31_32_34_one_line(
    in_process: Program, row: tuple[str, int, str]
) -> None:
    """What is wrong gets one line that says what is right."""
    line, code, says = row
    shutil.copy(BALANCE, "plan.json")
    Path("my plan.json").write_text(PLAN_OF_CODE.model_dump_json())
    shutil.copy(PROBE, "probe.json")
    Path("estimate.json").write_text('{"kind": "balance-estimate"}')
    Path("configs").mkdir()
    shutil.copy(QUICK_PAIR, "configs")
    Path("huge").touch()
    os.truncate("huge", 100 << 20)
    Path("there.html").write_text("mine")
    done = in_process(shlex.split(line.format(**NAMES)))
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("error: ")
    assert says.format(**NAMES) in done.err
    assert not ESCAPE.search(done.err)
    assert Path("there.html").read_text() == "mine"
