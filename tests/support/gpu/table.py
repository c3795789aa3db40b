"""The findings of all steps, as JSON and as a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from gpubalance.render.report.text import markdown_text
from tests.cli.program import ROOT
from tests.support.gpu.steps import STEPS

KIND = "gpu-evidence"
# Copies of what `scripts/bench gpu` wrote, from the first to the last.
EVIDENCE = sorted((ROOT / "tests" / "guide").glob("gpu-*.json"))
_VERSIONS = {"driver": "driver", "gpubalance": "gpubalance", "tensorflow": "TensorFlow"}
_VERSIONS |= {"keras": "Keras", "cuda": "built for CUDA", "cudnn": "cuDNN"}
_VERSIONS["python"] = "Python"


class Outcome(NamedTuple):
    """How a step ended, with what it found; `why` says why it is not done, empty if it is."""

    step: str
    outcome: Literal["done", "failed", "cut off", "not run"]
    why: str
    seconds: float
    figures: list[dict[str, Any]]

    @property
    def told(self) -> str:
        """The outcome in one line."""
        found = "; ".join(figure["told"] for figure in self.figures if figure["told"])
        ending = "" if self.outcome == "done" else f"**{self.outcome}**: {self.why}"
        return " ".join(". ".join(filter(None, [found, ending])).split())


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
    lines = ["| step | what it shows | seen on a fake GPU | seen on a GPU |"]
    lines.append("|---|---|---|---|")
    for step in STEPS:
        cell = told.get(step.name, "not yet").replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| `{step.name}` | {step.shows} | {step.on_fake} | {cell} |")
    seen = "\n\n".join(headlines) or "No GPU was seen yet."
    return "\n".join([seen, "", *lines, ""])


def _headline(found: dict[str, Any]) -> str:
    here = found["environment"]
    cards = " and ".join(found["cards"])
    known = [(name, here.get(key)) for key, name in _VERSIONS.items()]
    versions = [f"{name} {version}" for name, version in known if version]
    seen = f"Seen on {cards}" if cards else "Seen on no GPU, rehearsed"
    return markdown_text(f"{seen}; {', '.join([*versions, found['date']])}.")
