"""`scripts/bench [NAME [N [SEED]] …]`: runs these measurements, or all, and prints a line each.

The campaigns kills, fuzz and soak take how much of it, and the seed that an earlier one printed: `kills 30 7 fuzz`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

import psutil

from tests.bench import (
    balance,
    campaign,
    compare,
    curves,
    engine,
    exact,
    fuzz,
    kills,
    limit,
    plan,
    probe,
    soak,
    startup,
    training,
)

BENCHES: dict[str, Callable[..., Iterator[str]]] = {
    "startup": startup.main,
    "limit": limit.main,
    "probe": probe.main,
    "plan": plan.main,
    "engine": engine.main,
    "balance": balance.main,
    "exact": exact.main,
    "curves": curves.main,
    "training": training.main,
    "compare": compare.main,
    "campaign": campaign.main,
    "soak": soak.main,
    "fuzz": fuzz.main,
    "kills": kills.main,
    "kills-without-tensorflow": kills.without_tensorflow,
}
_COUNTED = ("kills", "kills-without-tensorflow", "fuzz", "soak")


def read(words: list[str]) -> list[tuple[str, list[int]]]:
    """Each bench that is named, with its numbers; all for none. Exits for what is neither."""
    asked: list[tuple[str, list[int]]] = []
    for word in words:
        if word.isascii() and word.isdigit() and asked and asked[-1][0] in _COUNTED and len(asked[-1][1]) < 2:
            asked[-1][1].append(int(word))
        elif word in BENCHES:
            asked.append((word, []))
        else:
            sys.exit(
                f"there is no bench {word}; there are {', '.join(BENCHES)}, and {', '.join(_COUNTED)} take a number"
            )
    return asked or [(name, []) for name in BENCHES]


def main(words: list[str]) -> None:
    asked = read(words)
    memory = psutil.virtual_memory().total / 2**30
    print(
        f"{datetime.now(timezone.utc):%Y-%m-%d}, {psutil.cpu_count()} cores, {memory:.0f} GiB, no GPU used", flush=True
    )
    for name, numbers in asked:
        for line in BENCHES[name](*numbers):
            print(f"{name}: {line}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
