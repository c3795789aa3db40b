"""Writes the parts of the guide that come from the program; a test compares them.

`python -m tests.guide.generate` runs it.

A part stands between `<!-- … -->` and `<!-- end -->`. In the tables of fields the last column is
written by hand and kept: a new field gets an empty cell, which the test refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from gpubalance.remedies import known_errors
from gpubalance.results.checkup import Checkup, ModelCheck
from gpubalance.results.comparison import Comparison
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.queue import Queue
from gpubalance.results.run import Measurement, Run
from gpubalance.settings.device import DeviceProfile
from tests.guide.documents import FOLDER
from tests.guide.fields import rows
from tests.support.gpu.table import EVIDENCE, KIND, markdown

_KINDS = (Run, Probe, Independent, Layers, Queue, Plan, Comparison, Checkup, ModelCheck)
RESULTS: Mapping[str, type[BaseModel]] = {kind.__name__: kind for kind in _KINDS}
_PART = re.compile(
    r"(?ms)^<!-- (?P<what>troubles|steps on a GPU|fields of \w+) -->\n(?P<old>.*?)^<!-- end -->"
)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def troubles() -> str:
    """The table of known errors."""
    return table(
        ("message", "cause", "what to do"),
        [(row.message, row.cause, row.remedy) for row in known_errors().values()],
    )


def steps_on_a_gpu(paths: Sequence[Path]) -> str:
    """The table of what `scripts/bench gpu` found on GPUs, in files from the first to the last.

    Raises ValueError if one was found without a GPU.
    """
    campaigns = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    for found in campaigns:
        if found.get("kind") != KIND or not found["cards"]:
            raise ValueError("that is no evidence from a GPU")
    return markdown(campaigns)


def fields(old: str, record: type[BaseModel], told: set[type[BaseModel]]) -> str:
    """The table of a result's fields, without those of records in `told`."""
    meanings = dict(re.findall(r"(?m)^\| (`\S+`) \|.*\| (.*) \|$", old))
    return table(
        ("field", "holds", "meaning"),
        [[*row, meanings.get(row[0], "")] for row in rows(record, told)],
    )


def generated(text: str) -> str:
    """A chapter with its generated parts written by the present program."""
    # The chapter on profiles has a profile's keys; a measurement has the fields of its run.
    told: set[type[BaseModel]] = {DeviceProfile, Measurement}

    def part(found: re.Match[str]) -> str:
        kind, _, of = found["what"].partition(" of ")
        if kind == "fields":
            made = fields(found["old"], RESULTS[of], told)
        elif kind == "steps on a GPU":
            made = steps_on_a_gpu(EVIDENCE)
        else:
            made = troubles()
        return f"<!-- {found['what']} -->\n{made}<!-- end -->"

    return _PART.sub(part, text)


if __name__ == "__main__":
    for path in FOLDER.glob("*.md"):
        path.write_text(generated(path.read_text(encoding="utf-8")), encoding="utf-8")
