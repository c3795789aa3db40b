"""`scripts/bench [NAME [N [SEED]] …]`: runs these measurements, or all, and prints a line for each.

The campaigns kills, fuzz, mutants, soak, decisions, rules and queue take a number of cases, and the
seed that an earlier one printed: `kills 30 7 fuzz`; `hosts 3` makes three hosts in place of two, and
`changes 5` changes a split five times in place of 200.
For a machine with GPUs see `scripts/bench gpu --help`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib import import_module

import psutil

from scripts.benches import gpu
from tests.cli.program import ROOT

# Each is a module with a main() that yields the lines, or a function of another one with its name.
BENCHES = (
    *(
        "startup",
        "limit",
        "plan",
        "engine",
        "balance",
        "exact",
        "training",
        "compare",
        "campaign",
    ),
    *(
        "layers",
        "cuts",
        "data",
        "decisions",
        "soak",
        "fuzz",
        "kills",
        "mutants",
        "minutes",
        "left",
        "queue",
        "ensemble",
        "sync",
        "rules",
        "published",
        "parity",
        "following",
        "changes",
        "slowed",
        "hosts",
    ),
    *("kills-without-tensorflow", "host", "tests", "alone", "torch"),
)
_IN = {
    **{
        "startup": "commands",
        "minutes": "commands",
        "left": "commands",
        "plan": "planners",
        "cuts": "planners",
        "training": "engine",
    },
    **{"campaign": "__main__", "kills-without-tensorflow": "kills"},
    "alone": "tests",
}
_COUNTED = (
    "kills",
    "kills-without-tensorflow",
    "fuzz",
    "mutants",
    "soak",
    "decisions",
    "queue",
    "rules",
    "parity",
    "changes",
    "hosts",
    "alone",
    "torch",
)


def read(words: list[str]) -> list[tuple[str, list[int]]]:
    """The named benches with their numbers, all of them without names. Exits on any other word."""
    asked: list[tuple[str, list[int]]] = []
    for word in words:
        if (
            word.isascii()
            and word.isdigit()
            and asked
            and asked[-1][0] in _COUNTED
            and len(asked[-1][1]) < 2
        ):
            asked[-1][1].append(int(word))
        elif word in BENCHES:
            asked.append((word, []))
        else:
            sys.exit(
                f"there is no bench {word}; there are {', '.join(BENCHES)}, and gpu for a "
                "machine with GPUs; "
                f"{', '.join(_COUNTED)} take a number"
            )
    return asked or [(name, []) for name in BENCHES]


def campaign() -> Iterator[str]:
    """The long tests that `scripts/test` leaves out."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "campaign"]
    lines = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    ).stdout.splitlines()
    yield from (line for line in lines if line.startswith(("FAILED", "ERROR")))
    yield lines[-1]


def main(words: list[str]) -> None:
    if words[:1] == ["gpu"]:
        sys.exit(gpu.main(words[1:]))
    asked = read(words)
    today = datetime.now(timezone.utc)
    memory = psutil.virtual_memory().total / 2**30
    print(
        f"{today:%Y-%m-%d}, {psutil.cpu_count()} cores, {memory:.0f} GiB, no GPU used",
        flush=True,
    )
    os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="2")
    for name, numbers in asked:
        bench = import_module(f"scripts.benches.{_IN.get(name, name)}")
        for line in getattr(bench, name.replace("-", "_") if name in _IN else "main")(
            *numbers
        ):
            print(f"{name}: {line}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
