"""Draws the picture at the top of the README from the pair's real result.

`python -m tests.render.picture` runs it.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from gpubalance.render.live import LiveSplit, header_lines, joint_lines
from gpubalance.results.plan import Plan
from gpubalance.results.records import read_record
from gpubalance.results.run import Measurement
from gpubalance.settings.device import Device
from tests.render.golden import DATA, told
from tests.support.known import known

PICTURE = Path(__file__).parents[2] / ".github" / "balance.svg"
_WIDTH = 80
# Rich's own format, without the fonts that it would load from the network.
_FORMAT = Path(__file__).with_name("picture.svg.txt").read_text(encoding="utf-8")


def lines() -> list[Text]:
    """The live screens of the even and the found split, and the summary without the script."""
    plan = read_record(DATA / "pair-balance.json", Plan)
    run = known(plan.run)
    even = known(run.baselines.even)
    given = "gpubalance {} --simulate configs/gtx1080ti-gtx1080.toml {}"
    ran = given.format("run", even.split.options)
    balanced = given.format("balance", "-o plan.json")
    following = given.format("run", "--plan plan.json")
    return [
        Text(f"$ {ran}", "bold"),
        *_screen(run.devices, even),
        Text(),
        Text(f"$ {balanced}", "bold"),
        *_screen(run.devices, run),
        Text(),
        *map(Text, told(plan, following, width=_WIDTH).splitlines()),
    ]


def _screen(devices: Sequence[Device], measured: Measurement) -> list[Text]:
    step = measured.step_time_s
    rates = deque(measured.global_batch / sample for sample in step.samples)
    course = LiveSplit(devices, measured.batches, step.median, rates)
    for row, replica in zip(course.rows, measured.replicas, strict=True):
        row.compute_s = replica.compute_s
        row.update_s = replica.update_s
        row.memory_bytes = replica.memory_peak_bytes
        row.rates["samples/s"] = row.batch / step.median
    doing = f"measuring {'/'.join(map(str, measured.batches))}, window 3 of 3"
    header = header_lines(doing, "about 4 s of 73 left", _WIDTH)
    return [*header, *joint_lines({"": course}, _WIDTH, 24)]


def svg() -> str:
    """The picture."""
    drawn: Any = {"record": True, "force_terminal": True, "color_system": "truecolor"}
    console = Console(width=_WIDTH, file=io.StringIO(), **drawn)
    for line in lines():
        console.print(line, no_wrap=True)
    return console.export_svg(
        title="gpubalance", theme=MONOKAI, code_format=_FORMAT, unique_id="gpubalance"
    )


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg(), encoding="utf-8")
