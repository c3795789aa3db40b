"""Where the time of a whole `balance` goes, and how long it said it would take."""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from typing import NamedTuple

from gpubalance.results.plan import Plan
from tests.cli.program import PROGRAM, ROOT

PHASES_HEAD = (
    "| profile | in all | said at its start | probe of each device | rounds | worker start | warm-up of the proof "
    "| proof | ends with |"
)
# The phase that a line of the program's progress begins; any other line continues the phase.
_BEGINNINGS = (
    ("… starting TensorFlow", "worker start"),
    ("… round", "rounds"),
    ("… proving", "warm-up of the proof"),
    ("… warming up", "warm-up of the proof"),
    ("… measuring", "proof"),
)
_JOINT = ("rounds", "worker start", "warm-up of the proof", "proof")


class Phases(NamedTuple):
    """How long a balance took, where the time went as the table's other cells, and what it ended with."""

    in_all_s: float
    cells: tuple[str, ...]
    plan: Plan


def middle(name: str, count: int) -> tuple[str, Plan]:
    """The table's row and the plan of the median of `count` balances of that profile."""
    runs = sorted((phases(name) for _ in range(count)), key=lambda run: run.in_all_s)
    one, spread = runs[count // 2], f" ({runs[0].in_all_s:.0f} to {runs[-1].in_all_s:.0f}, {count} times)"
    return f"| {name} | {one.in_all_s:.0f} s{spread if count > 1 else ''} | {' | '.join(one.cells)} |", one.plan


def phases(name: str) -> Phases:
    """The phases of a fresh `balance` of that profile."""
    command = [PROGRAM, "balance", "--simulate", str(ROOT / "configs" / f"{name}.toml"), "--fresh", "--json"]
    spent: dict[str, float] = defaultdict(float)
    said = ""
    phase, began, last_s = "start of the program", time.monotonic(), time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            now_s = time.monotonic()
            spent[phase] += now_s - last_s
            last_s, phase = now_s, _phase(line, phase)
            if line.startswith("… phase 1 ") and line.endswith(" in all\n"):
                said = line.rpartition("; ")[2].removesuffix(" in all\n").removeprefix("about ")
        assert running.stdout is not None
        plan = Plan.model_validate_json(running.stdout.read())
    spent[phase] += time.monotonic() - last_s
    probes = ", ".join(f"{seconds:.0f} s" for of, seconds in spent.items() if of.startswith("probe of"))
    joint = [f"{spent[of]:.0f} s" for of in _JOINT]
    return Phases(time.monotonic() - began, (said, probes, *joint, _end(plan)), plan)


def _end(plan: Plan) -> str:
    assert plan.balance is not None
    run = plan.balance.run
    assert run is not None
    assert run.throughput.ci95 is not None
    low, high = run.throughput.ci95
    half = (high - low) / 2 / run.throughput.median
    return f"{'/'.join(map(str, plan.batches))}, {run.throughput.median:.0f} samples/s ± {half:.1%}"


def _phase(line: str, before: str) -> str:
    """The phase from this line on."""
    if " alone (" in line:
        return f"probe of {line.split()[2]}"
    before = "rounds" if before == "worker start" else before
    return next((phase for beginning, phase in _BEGINNINGS if line.startswith(beginning)), before)
