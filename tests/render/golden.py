"""Printed summaries of results of real runs (data/): `python -m tests.render.golden` writes them.

The results were made on simulated devices by

    gpubalance balance --simulate configs/gtx1080ti-gtx1080.toml -o pair-balance.json
    gpubalance run --simulate configs/gtx1080ti-gtx1080.toml --batches 820 568 -o pair-run.json
    gpubalance independent --simulate configs/gtx1080ti-gtx1080.toml --batches 1024 512 -o pair-independent.json
    gpubalance layers --simulate configs/gtx1080ti-gtx1080-large-model.toml -o pair-layers.json
    gpubalance balance --simulate configs/four-unlike.toml -o four-balance.json

and the probes, which the two `balance` made, are pair-probe.json and four-probe.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpubalance.cli.next_command import layers_uses, uses
from gpubalance.render.report.words import summary_of
from gpubalance.render.table import summary
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_result
from gpubalance.results.run import Run
from gpubalance.results.subject import warnings_of

DATA = Path(__file__).with_name("data")
GOLDEN = Path(__file__).with_name("golden")
NAMES = (
    "pair-balance",
    "pair-run",
    "pair-independent",
    "pair-layers",
    "pair-probe",
    "four-balance",
    "four-probe",
)
WIDTHS = (80, 40)


def told(
    result: Plan | Probe | Independent | Layers | Run,
    following: str = "",
    script: Sequence[str] = (),
    width: int = 80,
) -> str:
    """A result's summary, as the program prints it."""
    return summary(summary_of(result), warnings_of(result), following, script, width)


def kept(name: str, width: int) -> str:
    """What the program prints for the result of that name."""
    result = read_result(DATA / f"{name}.json")
    profile = f"configs/{'gtx1080ti-gtx1080' if name.startswith('pair') else 'four-unlike'}.toml"
    gpus = " ".join(str(device.index) for device in result.devices)
    if isinstance(result, Plan):
        return told(result, *uses(result, profile, Path("plan.json")), width)
    if isinstance(result, Layers):
        return told(
            result, *layers_uses(Path(f"{name}.json"), None, result.settings), width
        )
    return told(
        result, f"gpubalance balance --simulate {profile} --gpus {gpus}", (), width
    )


def path(name: str, width: int) -> Path:
    """The file of a summary."""
    return GOLDEN / f"{name}-{width}.txt"


if __name__ == "__main__":
    for one in NAMES:
        for columns in WIDTHS:
            path(one, columns).write_text(kept(one, columns) + "\n", encoding="utf-8")
