"""How long `--help` takes beside a bare Typer and Rich program with as many commands."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.bench.ratio import in_turns
from tests.bench.wanted import Wanted, judged
from tests.cli.program import PROGRAM

_BARE = """
import typer
app = typer.Typer()
@app.command()
def one(number: int = 1): ...
@app.command()
def two(number: int = 1): ...
app()
"""


def _seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(_BARE)
        for arguments in (["--help"], ["run", "--help"]):
            theirs = [sys.executable, str(bare), *(["one"] if len(arguments) > 1 else []), "--help"]
            ratios = in_turns(partial(_seconds, [PROGRAM, *arguments]), partial(_seconds, theirs))
            wanted = 1.3 if len(arguments) == 1 else 1.5
            figure = judged(ratios, Wanted(wanted, at_most=True), most=48)
            yield f"gpubalance {' '.join(arguments)} over a bare Typer and Rich program's: {figure}"
