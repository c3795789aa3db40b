"""A ratio of two things measured in turns."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count


def in_turns(first: Callable[[], float], second: Callable[[], float]) -> Iterator[float]:
    """Endless ratios first ÷ second; they alternate in beginning a pair, as a machine may slow down steadily."""
    for unmeasured in (first, second):
        unmeasured()  # traces, caches, imports
    for pair in count():
        if pair % 2:
            other = second()
            yield first() / other
        else:
            yield first() / second()


def in_processes(module: str, *arguments: str) -> Iterator[float]:
    """Endless numbers, each printed by a new run of one of these modules."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-m", module, *arguments]
    while True:
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        yield float(done.stdout)
