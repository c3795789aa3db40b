"""Runs the steps one by one, each for its share of the time left, and goes on after a failure.

Each has a process of its own, `python -m scripts.benches.gpu_steps.runner NAME FOLDER FIGURES SECONDS
[--rehearse]`, which adds each figure to the file FIGURES as soon as it is found, a line of JSON
each: a rented machine may be gone at any time, and may give only a few files back. What else a step
writes, with its log, is in FOLDER.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil

from gpubalance.settings.device import Device
from gpubalance.text import clean
from gpubalance.workers.agent import die_with_parent
from scripts.benches.gpu_steps.place import Place, usable_gpus
from tests.cli.program import ROOT, children_of
from tests.support.gpu import parts
from tests.support.gpu.steps import Step
from tests.support.gpu.table import Outcome

# A step with less time would only load TensorFlow.
_LEAST_S = 5.0
# As Python ends with it; TensorFlow's messages have more lines.
_NAMES_AN_ERROR = re.compile(r"([a-z_]\w*\.)*[A-Z]\w*[a-z]\w*: ")


class Campaign(NamedTuple):
    """The steps' folder, the file of all figures, the GPUs, and whether the steps are rehearsed."""

    folder: Path
    figures: Path
    cards: Sequence[Device]
    rehearsed: bool


def run_steps(
    steps: Sequence[Step],
    campaign: Campaign,
    minutes: float,
    report: Callable[[str], None],
) -> Iterator[Outcome]:
    """Runs the steps and yields each outcome."""
    end_s = time.monotonic() + 60 * minutes
    for number, step in enumerate(steps):
        left_s = end_s - time.monotonic()
        # If time is short the first steps get it, and the last are not run.
        # Half a step shows little.
        share_s = min(
            left_s,
            max(1.0, left_s / sum(one.seconds for one in steps[number:]))
            * step.seconds,
        )
        outcome = Outcome(step.name, "not run", "the time was over", 0.0, [])
        if share_s >= _LEAST_S:
            report(
                f"… {number + 1} of {len(steps)}: {step.name}, {share_s:.0f} s at most"
            )
            outcome = _run(step, campaign, share_s)
        report(f"{step.name}: {outcome.outcome}, {outcome.seconds:.0f} s {outcome.why}")
        yield outcome


def _run(step: Step, campaign: Campaign, seconds: float) -> Outcome:
    """Runs a step in a process group that is killed when its time is over.

    Workers end with their parent.
    """
    folder, figures, cards, rehearsed = campaign
    command = [
        sys.executable,
        "-m",
        "scripts.benches.gpu_steps.runner",
        step.name,
        str(folder),
        str(figures),
        f"{seconds:.1f}",
    ]
    log = folder / f"{step.name}.log"
    began = time.monotonic()
    ended: Literal["done", "failed", "cut off"] = "done"
    with log.open("wb") as lines:
        process = subprocess.Popen(
            [*command, *(["--rehearse"] if rehearsed else [])],
            env=_environment(step, folder, cards),
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=lines,
            start_new_session=True,
        )
    try:
        ended, why = (
            ("failed", error_in(log)) if process.wait(seconds) else ("done", "")
        )
    except subprocess.TimeoutExpired:
        ended = "cut off"
        why = f"after its {seconds:.0f} s"
    finally:
        _kill(process)
    return Outcome(
        step.name, ended, why, time.monotonic() - began, figures_of(step.name, figures)
    )


def figures_of(step: str, file: Path) -> list[dict[str, Any]]:
    """The figures of a step in the file of all."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines]
    return [
        {"name": item["name"], "value": item["value"], "told": item["told"]}
        for item in found
        if item["step"] == step
    ]


def _environment(step: Step, folder: Path, cards: Sequence[Device]) -> dict[str, str]:
    """The step's variables: its own state folder, and parts if it needs them.

    A state folder of its own keeps it from using an earlier probe.
    """
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
        ),
        "XDG_STATE_HOME": str(folder / "state"),
    }
    if cards and step.parts and (len(cards) == 1 or len(step.parts) == 1):
        # The rest is for CUDA itself and for a second process
        together = 3 * sum(step.parts) // 2
        sizes = [
            size * min(together, cards[0].memory_bytes or together) // together
            for size in step.parts
        ]
        # The variable may hold a number, and parts have other numbers.
        variables.pop("CUDA_VISIBLE_DEVICES", None)
        return {**variables, **parts.environment(cards[0].uuid, sizes, str(ROOT))}
    return variables


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a process with all that it started, so that nothing runs beside the next step."""
    left = children_of(process.pid) if process.poll() is None else []
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for child in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(left, timeout=5)


def error_in(log: Path) -> str:
    """The error in a log: the last line that names one, else the last line.

    The module of the error's class is left out. TensorFlow names an error, says where its operation
    was made, then what happened, and at last the operation's name.
    """
    lines = [
        line
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    told = [line for line in lines if "[[{{node" not in line] or ["it said nothing"]
    named = [line for line in told if _NAMES_AN_ERROR.match(line)] or told
    said = f"{named[-1]} {told[-1]}" if named[-1].endswith("error:") else named[-1]
    return clean(re.sub(r"^[\w.]*\.(?=\w+: )", "", said), 300)


def main(name: str, folder: str, figures: str, seconds: str, *rehearse: str) -> None:
    """Runs a step in this process."""
    die_with_parent()
    until_s = time.monotonic() + float(seconds)
    place = Place(Path(folder, name), usable_gpus(), bool(rehearse), until_s)
    place.folder.mkdir(exist_ok=True)
    for figure in import_module(f"scripts.benches.gpu_steps.{name}").figures(place):
        line = json.dumps({"step": name, **figure._asdict()})
        with Path(figures).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # All is written: a driver's trouble at TensorFlow's end must not fail the step
    os._exit(0)
