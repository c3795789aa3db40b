"""The findings of all steps, as JSON and as a Markdown table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpubalance.devices.machine import read_gpus
from gpubalance.jobs.environment import environment_here
from gpubalance.numbers.units import format_bytes
from gpubalance.render.report.text import markdown_text
from gpubalance.settings.device import Device
from tests.cli.program import ROOT
from tests.support.gpu.runner import Outcome
from tests.support.gpu.steps import STEPS

KIND = "gpu-evidence"
# Copies of what `scripts/bench gpu` wrote, from the first to the last.
EVIDENCE = sorted((ROOT / "tests" / "guide").glob("gpu-*.json"))
_VERSIONS = {
    **{
        "driver": "driver",
        "gpubalance": "gpubalance",
        "tensorflow": "TensorFlow",
        "keras": "Keras",
    },
    **{"cuda": "built for CUDA", "cudnn": "cuDNN", "python": "Python"},
}


def evidence(outcomes: Sequence[Outcome], cards: Sequence[Device]) -> dict[str, Any]:
    """All that the table shows.

    Of the machine it has what figures depend on, and nothing that identifies it.
    """
    here = environment_here(read_gpus().driver_version if cards else None)
    steps = []
    for outcome in outcomes:
        told = [
            {"name": f["name"], "told": _without_names(f["told"])}
            for f in outcome.figures
            if f["told"]
        ]
        steps.append(
            {**outcome._asdict(), "why": _without_names(outcome.why), "figures": told}
        )
    return {
        "kind": KIND,
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "cards": [f"{card.name}, {format_bytes(card.memory_bytes)}" for card in cards],
        "environment": here.model_dump() if here else {},
        "steps": steps,
    }


def _without_names(text: str) -> str:
    """The text without the cards' UUIDs and the user's folder."""
    return re.sub(r"\b(GPU|MIG)-[0-9a-f]{8}[-0-9a-f]*", r"\1-…", text).replace(
        str(Path.home()), "~"
    )


def markdown(campaigns: Sequence[dict[str, Any]]) -> str:
    """A line of cards, driver, versions and date for each campaign, and a row for each step.

    A step's row is of the last campaign that found something by it. If there are several, lines and
    rows have their numbers.
    """
    told = dict[str, str]()
    headlines = []
    for number, found in enumerate(campaigns, 1):
        which = f"{number}: " if len(campaigns) > 1 else ""
        headlines.append(which + _headline(found))
        for outcome in (Outcome(**item) for item in found["steps"]):
            if outcome.figures or outcome.step not in told:
                told[outcome.step] = which + outcome.told
    lines = [
        "| step | what it shows | seen on a fake GPU | seen on a GPU |",
        "|---|---|---|---|",
    ]
    for step in STEPS:
        cell = told.get(step.name, "not yet").replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| `{step.name}` | {step.shows} | {step.on_fake} | {cell} |")
    seen = "\n\n".join(headlines) or "No GPU was seen yet."
    return "\n".join([seen, "", *lines, ""])


def _headline(found: dict[str, Any]) -> str:
    here = found["environment"]
    cards = " and ".join(found["cards"])
    versions = [
        f"{name} {here[key]}" for key, name in _VERSIONS.items() if here.get(key)
    ]
    seen = f"Seen on {cards}" if cards else "Seen on no GPU, rehearsed"
    return markdown_text(f"{seen}; {', '.join([*versions, found['date']])}.")
