"""A ratio of two things measured in turns."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from gpubalance.numbers.stats import interval95, median


def in_turns(first: Callable[[], float], second: Callable[[], float], pairs: int) -> list[float]:
    """first ÷ second, pair by pair; which of them begins a pair alternates, as a machine may slow down steadily."""
    for unmeasured in (first, second):
        unmeasured()  # traces, caches, imports
    ratios = []
    for pair in range(pairs):
        if pair % 2:
            other = second()
            ratios.append(first() / other)
        else:
            ratios.append(first() / second())
    return ratios


def shown(ratios: list[float]) -> str:
    """The median ratio with its 95 % interval."""
    interval = interval95(ratios)
    known = f" (95 %: {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    return f"{median(ratios):.3f}{known}, {len(ratios)} times"


def in_a_process(module: str, *arguments: str) -> float:
    """The number that a module of these prints when it is run."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return float(done.stdout)
