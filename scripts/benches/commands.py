"""How long commands take, and say that they will take.

`--help` stands beside a bare program, and the commands of a first hour beside their goals.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from gpubalance.results.timing import Overhead
from scripts.benches.turns import measure_interleaved, measured, seconds
from scripts.benches.wanted import Wanted, judged
from tests.cli.program import PROGRAM, QUICK_PAIR, ROOT

_BARE = """
import typer
app = typer.Typer()
@app.command()
def one(number: int = 1): ...
@app.command()
def two(number: int = 1): ...
app()
"""
_TIMES = 3
_OWN = ROOT / "scripts" / "benches" / "own_cnn.py"
_PAIR = ("--simulate", str(ROOT / "configs/gtx1080ti-gtx1080.toml"))
# Each command with the seconds in which it should end.
_FIRST_HOUR: dict[str, tuple[float, tuple[str, ...]]] = {
    "run of the README": (
        75,
        ("run", *_PAIR, "--gpus", "0", "1", "--batches", "820", "568"),
    ),
    "balance of the pair": (100, ("balance", *_PAIR)),
    "balance of quick-pair": (30, ("balance", "--simulate", QUICK_PAIR)),
    "probe of the pair": (40, ("probe", *_PAIR)),
    "run of 16 plain CPU devices": (
        40,
        ("run", "--simulate", "16", "--batches", *["8"] * 16),
    ),
    # One's own model and data, on a machine that computes it more slowly than the profile
    "balance of one's own CNN": (
        180,
        (
            "balance",
            "--simulate",
            QUICK_PAIR,
            "--time-scale",
            "8",
            "--model",
            f"{_OWN}:build",
            "--data",
            f"{_OWN}:dataset",
        ),
    ),
    "layers of the guide": (
        50,
        (
            "layers",
            "--simulate",
            str(ROOT / "configs/gtx1080ti-gtx1080-large-model.toml"),
        ),
    ),
}


def startup() -> Iterator[str]:
    """`--help` interleaved with that of a bare Typer and Rich program with as many commands."""
    bare = [sys.executable, "-c", _BARE]
    for ours, theirs, maximum in (
        (["--help"], ["--help"], 1.3),
        (["run", "--help"], ["one", "--help"], 1.5),
    ):
        ratios = measure_interleaved(
            partial(_seconds, [PROGRAM, *ours]), partial(_seconds, [*bare, *theirs])
        )
        figure = judged(ratios, Wanted(maximum=maximum), 48)
        yield f"gpubalance {' '.join(ours)} over a bare Typer and Rich program's: {figure}"


def _seconds(command: list[str]) -> float:
    return seconds(
        partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
    )


def minutes() -> Iterator[str]:
    """Each command of a first hour from an empty state folder, three times."""
    for name, (goal_s, command) in _FIRST_HOUR.items():
        found = sorted(_from_nothing(command) for _ in range(_TIMES))
        middle_s, told = found[_TIMES // 2]
        times = ", ".join(f"{took_s:.0f}" for took_s, _ in found)
        verdict = "met" if middle_s <= goal_s else "missed"
        yield f"{name}: {times} s; wanted at most {goal_s:g} s: {verdict}{told}"


def _from_nothing(command: tuple[str, ...]) -> tuple[float, str]:
    """How long the command takes, and how exactly it knows its step time."""
    with tempfile.TemporaryDirectory() as folder:
        told_s = _expected_whole_s(command, folder)
        began = time.monotonic()
        result = json.loads(measured(*command, XDG_STATE_HOME=folder))
        took_s = time.monotonic() - began
        told = f"; told beforehand: {told_s:.0f} s" if told_s else ""
        return took_s, told + _known(result) + _overhead(result)


def _expected_whole_s(command: tuple[str, ...], folder: str) -> float | None:
    """How long --dry-run says it will take; None for a command that has none."""
    if command[0] not in ("probe", "balance", "layers"):
        return None
    done = measured(*command, "--dry-run", XDG_STATE_HOME=folder)
    seconds: float = json.loads(done)["seconds"]
    return seconds


def _overhead(result: dict[str, Any]) -> str:
    """What workers took beside measured steps, for a result that tells."""
    parts = [result.get("balance") or {}, *result.get("probes", ())]
    known = [part["overhead"] for part in parts if part.get("overhead")]
    if not known:
        return ""
    total = sum((Overhead(**one) for one in known), Overhead())
    return (
        f"; {total.workers} workers started in {total.starting_s:.0f} s, "
        f"{total.traced} batch sizes traced in {total.tracing_s:.0f} s"
    )


def _known(result: dict[str, Any]) -> str:
    """The split and its step time's interval, for a result that has measured one."""
    run = (result.get("balance") or {}).get("run") or result
    step = run.get("step_time_s")
    if not step or not step["ci95"]:
        return ""
    low, high = step["ci95"]
    return f"; {run.get('batches', '')} known within ± {(high - low) / 2 / step['median']:.2%}"


_ON_FAKE_GPUS = (
    *(sys.executable, "-m", "tests.fake_gpu", "--memory", "3GiB,2GiB", "--"),
    *("gpubalance", "balance", "--model", "small", "--fresh", "--json"),
)
# `about 15 to 30 s of 2 min left`, `about 3 min of 5 left`
_LEFT = re.compile(r"about (?:(\d+)(?: (s|min))? to )?(\d+) (s|min) of .+ left$")
_UNITS_S = {"s": 1.0, "min": 60.0}
_FIRST_MINUTE_S = 60.0
_OFF = 0.3


class _Told(NamedTuple):
    """A line that tells when a command will end, in seconds from its start."""

    at_s: float
    least_s: float
    most_s: float

    def off(self, end_s: float) -> float:
        """How far the end is outside of what was told, as a part of the time that was left."""
        outside_s = max(self.least_s - end_s, end_s - self.most_s, 0.0)
        return outside_s / (end_s - self.at_s)


def left() -> Iterator[str]:
    """What a balance on two fake GPUs tells of the time left after its first minute, three times."""
    for _ in range(_TIMES):
        with tempfile.TemporaryDirectory() as folder:
            told, end_s = _told_by(_ON_FAKE_GPUS, folder)
        later = [one for one in told if one.at_s > _FIRST_MINUTE_S]
        texts = []
        for one in later:
            least_s, most_s = one.least_s - one.at_s, one.most_s - one.at_s
            was_s = end_s - one.at_s
            texts.append(f"{least_s:.0f} to {most_s:.0f} s ({was_s:.0f} s)")
        worst = max((one.off(end_s) for one in later), default=math.inf)
        verdict = "met" if worst <= _OFF else "missed"
        yield (
            f"balance of small on two fake GPUs: {end_s:.0f} s; told to be left, and was: "
            f"{', '.join(texts)}; at most {worst:.0%} off, wanted {_OFF:.0%}: {verdict}"
        )


def _told_by(command: tuple[str, ...], folder: str) -> tuple[list[_Told], float]:
    """What the command's lines tell, and how long it takes."""
    variables = os.environ | {"XDG_STATE_HOME": folder, "XDG_CACHE_HOME": folder}
    variables.pop("CUDA_VISIBLE_DEVICES", None)  # the benches' own, which hides GPUs
    began_s = time.monotonic()
    told = []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stderr or ():
            if found := _LEFT.search(line.rstrip()):
                least, unit_of_least, most, unit = found.groups()
                now_s = time.monotonic() - began_s
                least_s = int(least or most) * _UNITS_S[unit_of_least or unit]
                most_s = int(most) * _UNITS_S[unit]
                told.append(_Told(now_s, now_s + least_s, now_s + most_s))
    assert process.returncode == 0, command
    return told, time.monotonic() - began_s
