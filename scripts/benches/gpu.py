"""`scripts/bench gpu [--minutes 18] [--steps NAME …] [-o DIR] [--rehearse]`.

It needs nothing that `scripts/bench` sets up but gpubalance, TensorFlow and pytest: where those are
installed, `python -m scripts.benches gpu` in the checkout does the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from gpubalance.devices.machine import find_machine
from gpubalance.errors import EnvironmentFault
from gpubalance.settings.device import Device
from scripts.benches.gpu_steps.evidence import evidence
from scripts.benches.gpu_steps.place import usable_gpus
from scripts.benches.gpu_steps.runner import Campaign, run_steps
from tests.support.gpu.steps import STEPS
from tests.support.gpu.table import EVIDENCE, Outcome, markdown

_NO_GPU = 3
_PARTIAL = 6
FIGURES = "figures.jsonl"
_LARGE = 1 << 20


def main(words: Sequence[str]) -> int:
    """Runs the steps and returns the exit code.

    That is 3 without a GPU, and 6 if a step failed or was not done.
    """
    parser = _parser()
    asked = parser.parse_args(words)
    try:
        cards: tuple[Device, ...] = (
            usable_gpus() if asked.rehearse else find_machine(None).devices
        )
    except EnvironmentFault as error:
        _say(
            f"scripts/bench gpu: {error.message}; --rehearse runs the steps without a GPU"
        )
        return _NO_GPU
    folder = asked.o or Path(
        f"gpubalance-gpu-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    )
    figures = folder.resolve() / FIGURES
    try:
        # An empty folder may be given, as by what copies it back.
        folder.mkdir(parents=True, exist_ok=True)
        figures.open("x").close()
    except OSError as error:
        parser.error(f"-o {folder}: {error.strerror}")
    outcomes: list[Outcome] = []
    seen = () if asked.rehearse else cards
    with tempfile.TemporaryDirectory() as work:
        campaign = Campaign(Path(work), figures, cards, asked.rehearse)
        by_name = {step.name: step for step in STEPS}
        steps = [by_name[name] for name in dict.fromkeys(asked.steps)]
        for outcome in run_steps(steps, campaign, asked.minutes, _say):
            outcomes.append(outcome)
            # After each step, as a rented machine may be gone at any time.
            found = evidence(outcomes, seen)
            (folder / "gpu.json").write_text(
                json.dumps(found, indent=1) + "\n", encoding="utf-8"
            )
            (folder / "gpu.md").write_text(markdown([found]), encoding="utf-8")
            with tarfile.open(folder / "steps.tar.gz", "w:gz") as packed:
                packed.add(work, "steps", filter=_unless_large)
    print(markdown([found]))
    _say(
        f"{folder}: gpu.md has this table, {FIGURES} all figures, steps.tar.gz the steps' "
        "logs and files"
    )
    if not asked.rehearse:
        number = 1 + len(EVIDENCE)
        _say(
            f"into the guide: cp {folder}/gpu.json tests/guide/gpu-{number}.json && "
            "python -m tests.guide.generate"
        )
    return 0 if all(one.outcome == "done" for one in outcomes) else _PARTIAL


def _unless_large(file: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without traces, which the steps have read."""
    return file if file.size < _LARGE else None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    names_of_steps = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(
        prog="scripts/bench gpu",
        description="Measures on this machine's GPUs what can be known nowhere else, most valuable "
        "first: "
        f"{', '.join(names_of_steps)}. What ran before the time was over counts.",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=18.0,
        metavar="M",
        help="how long it may take, 18 if not given",
    )
    parser.add_argument(
        "--steps",
        nargs="+",
        choices=names_of_steps,
        default=names_of_steps,
        metavar="NAME",
        help="only these steps, in this order",
    )
    parser.add_argument(
        "-o", type=Path, metavar="DIR", help="a new or empty folder for what is found"
    )
    rehearse = (
        "small steps, which show only that they work: on GPUs, or without any on simulated and "
        "plain CPU devices"
    )
    parser.add_argument("--rehearse", action="store_true", help=rehearse)
    return parser
