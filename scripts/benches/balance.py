"""What `balance` ends with on the shipped profiles and on plain CPU devices.

On the CPU devices, the best split of a scan stands beside it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from gpubalance.results.plan import Plan
from gpubalance.results.run import Run
from scripts.benches.turns import measure_interleaved, measured
from scripts.benches.wanted import Wanted, judged
from tests.cli.program import ROOT
from tests.jobs.probes import proof_of
from tests.support.known import known

# Work on one core beside plain CPU devices, which makes them unlike.
_BUSY = "while True: pass"
_SCANNED = (512, 1024, 1536, 2048, 2560, 3072, 3584)
_GLOBAL = 4096
_CPUS = ("--simulate", "2", "--model", "small")
_MOST_TURNS = 12
_PROFILES = (
    *("gtx1080ti-gtx1080", "small-memory-fast", "slow-second"),
    *("four-unlike", "throttling", "gtx1070-m40-gtx750"),
)
_HEAD = (
    "profile, `--accumulate` | batches | samples/s | × even | global batch, even's | of the solo "
    "sum"
)


def main() -> Iterator[str]:
    yield f"| {_HEAD} | imbalance | rounds |"
    for name in _PROFILES:
        yield from _splits(name)
    yield from _plain()


def _splits(name: str) -> Iterator[str]:
    """A row without micro-batches, and one with them if `plan` gives another split then."""
    of = ("--simulate", str(ROOT / "configs" / f"{name}.toml"))
    off = _plan("balance", *of, "--fresh")
    auto = _plan("plan", *of, "--accumulate", "auto")
    if auto.split == off.split:
        yield _row(f"{name}, off and auto", off)
        return
    yield _row(f"{name}, off", off)
    yield _row(f"{name}, auto", _plan("balance", *of, "--accumulate", "auto"))


def _plan(*arguments: str) -> Plan:
    return Plan.model_validate_json(measured(*arguments))


def _row(name: str, plan: Plan) -> str:
    run = proof_of(plan)
    even = run.baselines.even
    split = plan.split
    columns = (
        name,
        str(split)
        + (": the others are left out" if len(split.used) < len(split.batches) else ""),
        f"{run.throughput.median:.0f}",
        f"{run.speedup_over_even:.3f}" if even else "",
        f"{run.global_batch}, {even.global_batch}" if even else "",
        f"{run.scaling_efficiency:.3f}" if run.scaling_efficiency else "",
        f"{run.imbalance:.3f}",
        f"{len(known(plan.balance).rounds)}",
    )
    return f"| {' | '.join(columns)} |"


def _plain() -> Iterator[str]:
    """The line for two plain CPU devices, which no profile paces, with other work beside them."""
    busy = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        measured("probe", *_CPUS, "--max-batch", str(_GLOBAL), "--duration", "1")
        of_global = (
            "--global-batch",
            str(_GLOBAL),
            "--duration",
            "8",
            "--windows",
            "2",
        )
        found = _plan("balance", *_CPUS, *of_global).batches[0]
        best = max(_SCANNED, key=_rate)
        # The best of a scan is partly luck, so the two splits are measured again, in turns.
        figure = judged(
            measure_interleaved(partial(_rate, found), partial(_rate, best)),
            Wanted(0.95),
            _MOST_TURNS,
        )
    finally:
        busy.kill()
    yield (
        f"plain CPU devices: {found}/{_GLOBAL - found} over the best of a scan, "
        f"{best}/{_GLOBAL - best}: {figure}"
    )


def _rate(first: int) -> float:
    used = {
        gpu: batch for gpu, batch in (("0", first), ("1", _GLOBAL - first)) if batch
    }
    split = ("--gpus", *used, "--batches", *map(str, used.values()))
    run = measured(
        "run", *_CPUS, *split, "--baseline", "none", "--duration", "6", "--windows", "1"
    )
    return Run.model_validate_json(run).throughput.median
