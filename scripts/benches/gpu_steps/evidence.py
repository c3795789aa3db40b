"""What a campaign found, for the guide: tests/support/gpu/table.py shows it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpubalance.devices.machine import environment_here, read_gpus
from gpubalance.numbers.units import format_bytes
from gpubalance.settings.device import Device
from tests.support.gpu.table import KIND, Outcome


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
