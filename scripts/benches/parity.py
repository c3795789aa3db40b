"""Whether the parity check says what is true of drawn models, whatever the processor rounds.

`scripts/bench parity [N [SEED]]` checks N of them. Each environment is a process of its own: oneDNN
with the instructions of older processors, TensorFlow without oneDNN, and one or two threads. In
each the three precisions take turns; oneDNN without newer instructions has no bfloat16.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product

from tests.cli.program import ROOT
from tests.training.drawn import judged

_INSTRUCTIONS = ("SSE41", "AVX2", "")  # "" stands for the machine's own
_AT_A_TIME = 60  # TensorFlow keeps something of each
_ENVIRONMENTS = tuple(product(_INSTRUCTIONS, ("1", "0"), (1, 2)))


def main(count: int = 120, seed: int | None = None) -> Iterator[str]:
    """The lines about false alarms and misses, and how many steps were checked."""
    first = random.randrange(10**6) if seed is None else seed
    yield f"seed {first}"
    share = -(-count // len(_ENVIRONMENTS))
    total: Counter[str] = Counter()
    for instructions, uses_onednn, threads in _ENVIRONMENTS:
        name = f"{instructions or 'own'}, oneDNN {uses_onednn}, {threads} threads"
        of_this: Counter[str] = Counter()
        environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": uses_onednn}
        if instructions:
            environment["ONEDNN_MAX_CPU_ISA"] = instructions
        for start in range(first, first + share, _AT_A_TIME):
            end = min(first + share, start + _AT_A_TIME)
            for line in _checked(environment, threads, start, end):
                kind, text = json.loads(line)
                of_this[kind] += 1
                if kind in ("false alarm", "miss", "FAILED"):
                    yield f"{kind} with {name}: {text}"
        first += share
        total += of_this
        yield f"{name}: {_counts(of_this)}"
    yield f"in all: {_counts(total)}"


def _counts(counts: Counter[str]) -> str:
    checked = sum(counts.values()) - counts["undecided"]
    false = counts["false alarm"]
    missed = counts["miss"]
    failed = counts["FAILED"]
    return (
        f"{checked} checked, {false} false alarms, {missed} misses, {failed} failed; "
        f"{counts['undecided']} more too near to two truths"
    )


def _checked(
    environment: dict[str, str], threads: int, start: int, end: int
) -> Iterator[str]:
    """The lines of a process that checks the steps with these numbers."""
    words = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "scripts.benches.parity",
        threads,
        start,
        end,
    ]
    done = subprocess.run(
        list(map(str, words)),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    yield from lines
    if done.returncode:
        yield json.dumps(
            [
                "FAILED",
                f"from {start + len(lines)}: exit code {done.returncode}: {done.stderr[-2000:]}",
            ]
        )


def _check(threads: int, start: int, end: int) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    for seed in range(start, end):
        try:
            kind = judged(seed)
        except Exception as error:  # noqa: BLE001 - it is the case's result
            kind = ("FAILED", f"seed {seed}: {type(error).__name__}: {error}"[:600])
        print(json.dumps(kind), flush=True)


if __name__ == "__main__":
    _check(*map(int, sys.argv[1:]))
