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
from tests.bench.gpu.runner import Outcome
from tests.bench.gpu.steps import STEPS

KIND = "gpu-evidence"


def evidence(outcomes: Sequence[Outcome], cards: Sequence[Device]) -> dict[str, Any]:
    """All that the tables show. Of the machine it has what figures depend on, and nothing that identifies it."""
    here = environment_here(read_gpus().driver_version if cards else None)
    return {
        "kind": KIND,
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "cards": [f"{card.name}, {format_bytes(card.memory_bytes)}" for card in cards],
        "environment": here.model_dump() if here else {},
        "steps": [
            {
                **outcome._asdict(),
                "why": _without_names(outcome.why),
                "figures": [
                    {"name": one["name"], "told": _without_names(one["told"])} for one in outcome.figures if one["told"]
                ],
            }
            for outcome in outcomes
        ],
    }


def _without_names(text: str) -> str:
    """The text without the cards' UUIDs and the user's folder."""
    return re.sub(r"\b(GPU|MIG)-[0-9a-f]{8}[-0-9a-f]*", r"\1-…", text).replace(str(Path.home()), "~")


def headline(found: dict[str, Any]) -> str:
    """The cards, driver, versions and date in one line."""
    here = found["environment"]
    cards = " and ".join(found["cards"]) or "no GPU, rehearsed on simulated and plain CPU devices"
    parts = [
        *(f"{name} {here[key]}" for name, key in _VERSIONS if here.get(key)),
        found["date"],
    ]
    return f"{cards}; {', '.join(parts)}"


_VERSIONS = (
    *(("driver", "driver"), ("gpubalance", "gpubalance"), ("TensorFlow", "tensorflow"), ("Keras", "keras")),
    *(("built for CUDA", "cuda"), ("cuDNN", "cudnn"), ("Python", "python")),
)


def markdown(found: dict[str, Any]) -> str:
    """A row for each step."""
    shows = {step.name: step.shows for step in STEPS}
    rows = [("step", "what it shows", "found", "s"), ("---", "---", "---", "--:")]
    for one in found["steps"]:
        told = Outcome(**one).told
        rows.append((one["step"], shows[one["step"]], cell(told), f"{one['seconds']:.0f}"))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([markdown_text(headline(found)), "", *lines, ""])


def seen(found: dict[str, Any] | None) -> tuple[str, list[tuple[str, str, str]]]:
    """For the guide: a headline, and a row for each step. Raises ValueError for findings that no GPU has made.

    Bars in the text are not escaped.
    """
    if found is None:
        return "No GPU was seen yet.", [(f"`{step.name}`", step.shows, "not yet") for step in STEPS]
    if found.get("kind") != KIND or not found["cards"]:
        raise ValueError("that is no evidence from a GPU")
    told = {one["step"]: Outcome(**one).told for one in found["steps"]}
    rows = [(f"`{step.name}`", step.shows, told.get(step.name, "not yet")) for step in STEPS]
    return f"Seen on {headline(found)}.", rows


def cell(text: str) -> str:
    """Text for a table, with its bars and angle brackets escaped."""
    return text.replace("|", "\\|").replace("<", "&lt;")
