"""What `balance` ends with on the shipped profiles, and on plain CPU devices beside the best split of a scan."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from gpubalance.results.plan import Plan
from gpubalance.results.run import Run
from tests.bench.measured import measured
from tests.bench.ratio import in_turns
from tests.bench.wanted import Wanted, judged
from tests.cli.program import ROOT

# Work on one core beside plain CPU devices, which makes them unlike.
_BUSY = "while True: pass"
_SCANNED = (512, 1024, 1536, 2048, 2560, 3072, 3584)
_SCANNED_GLOBAL = 4096
_MOST_TURNS = 12
_SPLITS_HEAD = (
    "| profile, `--accumulate` | batches | samples/s | × even | global batch, even's | of the solo sum | imbalance "
    "| rounds |"
)


def main() -> Iterator[str]:
    yield _SPLITS_HEAD
    for name in ("gtx1080ti-gtx1080", "small-memory-fast", "slow-second", "four-unlike", "throttling"):
        yield from _splits(name)
    yield from _plain()


def _splits(name: str) -> Iterator[str]:
    """A row without micro-batches, and one with them if `plan` gives another split then."""
    profile = str(ROOT / "configs" / f"{name}.toml")
    off = Plan.model_validate_json(measured("balance", "--simulate", profile, "--fresh"))
    auto = Plan.model_validate_json(measured("plan", "--simulate", profile, "--accumulate", "auto"))
    if auto.split == off.split:
        yield _row(f"{name}, off and auto", off)
        return
    yield _row(f"{name}, off", off)
    found = measured("balance", "--simulate", profile, "--accumulate", "auto")
    yield _row(f"{name}, auto", Plan.model_validate_json(found))


def _row(name: str, plan: Plan) -> str:
    assert plan.balance is not None
    run = plan.balance.run
    assert run is not None
    even = run.baselines.even
    split = plan.split
    return " | ".join(
        (
            f"| {name}",
            str(split) + (": the others are left out" if len(split.used) < len(split.batches) else ""),
            f"{run.throughput.median:.0f}",
            f"{run.speedup_over_even:.3f}" if even else "",
            f"{run.global_batch}, {even.global_batch}" if even else "",
            f"{run.scaling_efficiency:.3f}" if run.scaling_efficiency else "",
            f"{run.imbalance:.3f}",
            f"{len(plan.balance.rounds)} |",
        )
    )


def _plain() -> Iterator[str]:
    """The lines for two plain CPU devices, which no profile paces, with other work beside them."""
    busy = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        common = ("--simulate", "2", "--model", "small")
        measured("probe", *common, "--max-batch", str(_SCANNED_GLOBAL), "--duration", "1")
        plan = Plan.model_validate_json(
            measured("balance", *common, "--global-batch", str(_SCANNED_GLOBAL), "--duration", "8", "--windows", "2")
        )
        found = plan.batches[0]
        rates = {first: _rate(common, first) for first in _SCANNED}
        best = max(rates, key=lambda first: rates[first])
        # The best of a scan is partly luck, so the two splits are measured again, in turns.
        ratios = in_turns(lambda: _rate(common, found), lambda: _rate(common, best))
        figure = judged(ratios, Wanted(0.95), _MOST_TURNS)
    finally:
        busy.kill()
    yield (
        f"plain CPU devices: {found}/{_SCANNED_GLOBAL - found} over the best of a scan, "
        f"{best}/{_SCANNED_GLOBAL - best}: {figure}"
    )


def _rate(common: tuple[str, ...], first: int) -> float:
    batches = {"0": first, "1": _SCANNED_GLOBAL - first}
    used = [gpu for gpu, batch in batches.items() if batch]
    split = ("--gpus", *used, "--batches", *(str(batches[gpu]) for gpu in used))
    run = measured("run", *common, *split, "--baseline", "none", "--duration", "6", "--windows", "1")
    return Run.model_validate_json(run).throughput.median
