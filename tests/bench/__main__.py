"""`scripts/bench [NAME …]`: runs these measurements, or all, and prints a line each."""

from __future__ import annotations

import sys
from datetime import datetime, timezone

import psutil

from tests.bench import balance, campaign, compare, curves, engine, exact, limit, plan, probe, startup, training

BENCHES = {
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
}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        sys.exit(f"there is no bench {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    memory = psutil.virtual_memory().total / 2**30
    print(
        f"{datetime.now(timezone.utc):%Y-%m-%d}, {psutil.cpu_count()} cores, {memory:.0f} GiB, no GPU used", flush=True
    )
    for name in names or BENCHES:
        for line in BENCHES[name]():
            print(f"{name}: {line}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
