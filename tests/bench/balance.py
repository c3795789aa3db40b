"""What `balance` ends with on the profiles that ship, and on plain CPU devices beside the best of a scan of splits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from gpubalance.results.plan import Plan
from gpubalance.results.run import Run
from tests.bench.measured import measured
from tests.bench.phases import phases
from tests.bench.ratio import in_turns
from tests.bench.wanted import Wanted, judged
from tests.cli.program import ROOT

# Work on one core beside plain CPU devices, which makes them unlike.
_BUSY = "while True: pass"
_SCANNED = (512, 1024, 1536, 2048, 2560, 3072, 3584)
_SCANNED_GLOBAL = 4096
_MOST_TURNS = 12


def main() -> Iterator[str]:
    for name in ("gtx1080ti-gtx1080", "quick-pair"):
        yield from phases(name)
    for name in ("gtx1080ti-gtx1080", "small-memory-fast", "slow-second", "four-unlike", "throttling"):
        profile = str(ROOT / "configs" / f"{name}.toml")
        measured("probe", "--simulate", profile, "--duration", "0.5")
        for accumulate in ("off", "auto"):
            plan = Plan.model_validate_json(measured("balance", "--simulate", profile, "--accumulate", accumulate))
            yield f"{name}, --accumulate {accumulate}: {_figures(plan)}"
    yield from _plain()


def _figures(plan: Plan) -> str:
    assert plan.balance is not None
    run = plan.balance.run
    assert run is not None
    even = "one device"
    if run.baselines.even is not None:
        batches = f"global batch {run.global_batch} beside {run.baselines.even.global_batch}"
        even = f"{run.speedup_over_even:.3f} × the even split ({batches})"
    solo = f"{run.scaling_efficiency:.3f} of the solo sum" if run.scaling_efficiency else ""
    split = "/".join(map(str, plan.batches))
    micro = "/".join(map(str, plan.micro_batches))
    return (
        f"{split} in {micro}: {run.throughput.median:.0f} samples/s, {even}, {solo}, imbalance {run.imbalance:.3f}, "
        f"{len(plan.balance.rounds)} rounds"
    )


def _plain() -> Iterator[str]:
    """Two plain CPU devices with other work beside them, as no profile paces them."""
    busy = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        common = ("--simulate", "2", "--model", "small")
        measured("probe", *common, "--max-batch", str(_SCANNED_GLOBAL), "--duration", "1")
        plan = Plan.model_validate(
            measured("balance", *common, "--global-batch", str(_SCANNED_GLOBAL), "--duration", "8", "--windows", "2")
        )
        found = plan.batches[0]
        rates = {first: _rate(common, first) for first in _SCANNED}
        best = max(rates, key=lambda first: rates[first])
        # The best of a scan is partly luck: the two are measured again, in turns.
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
