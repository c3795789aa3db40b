"""How long the commands of a first hour take, each from an empty state folder, three times, beside the goal."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.bench.measured import measured
from tests.cli.program import ROOT

_TIMES = 3
_CONFIGS = ROOT / "configs"
_PAIR = ("--simulate", str(_CONFIGS / "gtx1080ti-gtx1080.toml"))


class Row(NamedTuple):
    """A command, and the seconds in which it should end."""

    name: str
    command: tuple[str, ...]
    goal_s: float


ROWS = (
    Row("run of the README", ("run", *_PAIR, "--gpus", "0", "1", "--batches", "820", "568"), 75),
    Row("balance of the pair", ("balance", *_PAIR), 100),
    Row("balance of quick-pair", ("balance", "--simulate", str(_CONFIGS / "quick-pair.toml")), 30),
    Row("probe of the pair", ("probe", *_PAIR), 40),
    Row("run of 16 plain CPU devices", ("run", "--simulate", "16", "--batches", *["8"] * 16), 40),
    Row("layers of the guide", ("layers", "--simulate", str(_CONFIGS / "gtx1080ti-gtx1080-large-model.toml")), 50),
)


def main() -> Iterator[str]:
    for row in ROWS:
        found = sorted(_seconds(row.command) for _ in range(_TIMES))
        middle_s, told = found[_TIMES // 2]
        times = ", ".join(f"{seconds:.0f}" for seconds, _ in found)
        verdict = "met" if middle_s <= row.goal_s else "missed"
        yield f"{row.name}: {times} s; wanted at most {row.goal_s:g} s: {verdict}{told}"


def _seconds(command: tuple[str, ...]) -> tuple[float, str]:
    """How long the command takes from nothing, and how exactly it knows its step time."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        result = json.loads(measured(*command, environment={"XDG_STATE_HOME": folder}))
        return time.monotonic() - began, _known(result)


def _known(result: dict[str, Any]) -> str:
    """The split and its step time's interval, for a result that has measured one."""
    run = (result.get("balance") or {}).get("run") or result
    step = run.get("step_time_s")
    if not step or not step["ci95"]:
        return ""
    low, high = step["ci95"]
    return f"; {run.get('batches', '')} known within ± {(high - low) / 2 / step['median']:.2%}"
