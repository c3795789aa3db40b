"""`scripts/bench [NAME [N [SEED]] …]`: runs these measurements, or all, and prints a line for each.

The campaigns kills, fuzz, soak, decisions and queue take a number of cases, and the seed that an earlier one printed:
`kills 30 7 fuzz`. For a machine with GPUs see `scripts/bench gpu --help`.
"""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from importlib import import_module

import psutil

from tests.bench.gpu import command

# Each is a module with a main() that yields the lines.
BENCHES = (
    *("startup", "limit", "plan", "engine", "balance", "exact", "training", "compare", "campaign"),
    *("layers", "cuts", "sync", "data", "decisions", "soak", "fuzz", "kills", "minutes", "queue", "ensemble"),
    "kills-without-tensorflow",
)
_COUNTED = ("kills", "kills-without-tensorflow", "fuzz", "soak", "decisions", "queue")


def read(words: list[str]) -> list[tuple[str, list[int]]]:
    """The named benches with their numbers, all of them without names. Exits on any other word."""
    asked: list[tuple[str, list[int]]] = []
    for word in words:
        if word.isascii() and word.isdigit() and asked and asked[-1][0] in _COUNTED and len(asked[-1][1]) < 2:
            asked[-1][1].append(int(word))
        elif word in BENCHES:
            asked.append((word, []))
        else:
            sys.exit(
                f"there is no bench {word}; there are {', '.join(BENCHES)}, and {', '.join(_COUNTED)} take a number; "
                "`scripts/bench gpu` is for a machine with GPUs"
            )
    return asked or [(name, []) for name in BENCHES]


def main(words: list[str]) -> None:
    if words[:1] == ["gpu"]:
        sys.exit(command.main(words[1:]))
    asked = read(words)
    memory = psutil.virtual_memory().total / 2**30
    print(
        f"{datetime.now(timezone.utc):%Y-%m-%d}, {psutil.cpu_count()} cores, {memory:.0f} GiB, no GPU used", flush=True
    )
    for name, numbers in asked:
        of, _, without_tensorflow = name.partition("-")
        bench = import_module(f"tests.bench.{of}")
        for line in (bench.without_tensorflow if without_tensorflow else bench.main)(*numbers):
            print(f"{name}: {line}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
