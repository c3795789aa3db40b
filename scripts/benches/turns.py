"""Two things measured interleaved, and what is measured in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from gpubalance.numbers.stats import median
from tests.cli.program import PROGRAM

Figure = Callable[[], float]


def measure_interleaved(first: Figure, second: Figure) -> Iterator[float]:
    """Endless ratios first ÷ second.

    They alternate in beginning a pair, as a machine may slow down steadily.
    """
    for unmeasured in (first, second):
        unmeasured()  # traces, caches, imports
    while True:
        yield first() / second()
        other = second()
        yield first() / other


def ratio_of(first: Figure, second: Figure, pairs: int) -> float:
    """The median over so many pairs."""
    return median([*islice(measure_interleaved(first, second), pairs)])


def seconds(of: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    of()
    return time.perf_counter() - began


def printed(module: str, *words: str, **variables: str) -> str:
    """What one of these modules prints in a process of its own."""
    return printed_by([sys.executable, "-m", module, *words], **variables)


def printed_by(command: list[str], **variables: str) -> str:
    """What a command prints, which must end well."""
    return _run(command, variables, capture_output=True)


def in_processes(module: str, *words: str) -> Iterator[float]:
    """Endless numbers, each of a new process."""
    while True:
        yield float(printed(module, *words))


def measured(*arguments: str, given: str = "", **variables: str) -> str:
    """The JSON of a command of the program, which must end well; `given` is its input."""
    command = [
        PROGRAM,
        *arguments,
        "--json",
        *(["--quiet"] if arguments[0] != "plan" else []),
    ]
    return _run(command, variables, input=given, stdout=subprocess.PIPE)


def _run(command: list[str], variables: dict[str, str], **how: Any) -> str:
    return str(
        subprocess.run(
            command, env=os.environ | variables, check=True, text=True, **how
        ).stdout
    )
