"""`scripts/bench gpu [--minutes 9] [-o DIR] [--rehearse]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from gpubalance.devices.machine import find_machine
from gpubalance.errors import EnvironmentFault
from gpubalance.settings.device import Device
from tests.bench.gpu.runner import Outcome, run_steps
from tests.bench.gpu.steps import STEPS
from tests.bench.gpu.table import evidence, markdown

_NO_GPU, _PARTIAL = 3, 6


def main(words: Sequence[str]) -> int:
    """Runs the steps. Returns the exit code: 3 without a GPU, 6 if a step failed or was not done."""
    parser = _parser()
    asked = parser.parse_args(words)
    try:
        cards: tuple[Device, ...] = () if asked.rehearse else find_machine(None).devices
    except EnvironmentFault as error:
        _say(f"scripts/bench gpu: {error.message}; --rehearse runs the steps without a GPU")
        return _NO_GPU
    folder = asked.o or Path(f"gpubalance-gpu-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        parser.error(f"-o {folder}: {error.strerror}")
    outcomes: list[Outcome] = []
    for outcome in run_steps(STEPS, folder.resolve(), cards, asked.minutes, _say):
        outcomes.append(outcome)
        found = evidence(outcomes, cards)  # after each step, as a rented machine may be gone at any time
        (folder / "gpu.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        (folder / "gpu.md").write_text(markdown(found), encoding="utf-8")
    print(markdown(found))
    _say(f"{folder}: gpu.md has this table, and each step its figures (.json) and its log")
    if cards:
        _say(f"into the guide: cp {folder}/gpu.json tests/guide/ && python -m tests.guide.generate")
    return 0 if all(one.outcome == "done" for one in outcomes) else _PARTIAL


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    names = ", ".join(step.name for step in STEPS)
    parser = argparse.ArgumentParser(
        prog="scripts/bench gpu",
        description="Measures on this machine's GPUs what can be known nowhere else, in minutes, most valuable first: "
        f"{names}. What ran before the time was over counts.",
    )
    parser.add_argument("--minutes", type=float, default=9.0, metavar="M", help="how long it may take, 9 if not given")
    parser.add_argument("-o", type=Path, metavar="DIR", help="a new folder for what is found")
    rehearse = "the same steps on simulated and plain CPU devices, in about two minutes"
    parser.add_argument("--rehearse", action="store_true", help=rehearse)
    return parser
