"""How often `compare` calls two equal runs different, and how often it finds a true 3 %.

Also what correlated step times do to it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

from gpubalance.numbers.stats import half_width, interval95
from gpubalance.results.comparison import Comparison
from gpubalance.settings.measuring import Measuring
from scripts.benches.comparisons import SPLITS, called_different, drawn_series, promises
from scripts.benches.turns import measured
from scripts.benches.wanted import Wanted, judged_shares
from tests.cli.program import gpubalance

_MOST = 8  # times the first draws
_CALLED = (Wanted(maximum=0.05), Wanted(0.9))
_SHORT = Measuring(windows=3, duration_s=3.0, baseline="none")
_BETWEEN = (0.005, 0.01)  # which no run's own interval includes
_SERIES = 2000
_KEPT = (Wanted(0.92), Wanted(maximum=0.05), Wanted(0.9), Wanted(maximum=0.05))
_COUNTS = (5, 8, 12, 20, 36, 54)
_CORRELATIONS = (0.0, 0.3, 0.5, 0.7, 0.9)
_REAL_RUNS = 8
# Quick pairs with noise, five times as slow, so that other work on the machine counts for less.
_DEVICE = '[[device]]\nname = "Quick"\nalpha_s = 0.04\nbeta_s = {}\nnoise = 0.02\n'
_REAL = _DEVICE.format(0.001) + _DEVICE.format(0.0015) + "[joint]\nsync_s = 0.03\n"


def main() -> Iterator[str]:
    same, slower = _CALLED
    yield (
        f"pairs of drawn runs that are called different: of the same ({same}), with one 3 % "
        f"slower ({slower})"
    )
    for name, measuring, correlation in product(
        SPLITS, (None, _SHORT), (0.0, 0.5, 0.9)
    ):
        draw = partial(
            called_different, name, correlation=correlation, measuring=measuring
        )
        own = ", ".join(judged_shares(draw, _CALLED, _MOST))
        yield f"{name}, {'--duration 3' if measuring else 'default'}, ρ {correlation}: {own}"
    for between in _BETWEEN:
        found, _ = called_different("gtx1080ti-gtx1080", between=between)
        yield f"of the same, which differ from run to run by {between:.1%}: {found.part:.1%}"
    yield from _series()
    yield _real()


def _series() -> Iterator[str]:
    names = (
        "the ± holds the true value",
        "equal ones called different",
        "detectable, found",
        "called unsteady",
    )
    yield ", ".join(
        f"{name} ({wanted})" for name, wanted in zip(names, _KEPT, strict=True)
    )
    for count, correlation in product(_COUNTS, _CORRELATIONS):
        draw = partial(promises, count, correlation, _SERIES)
        yield f"{count} timings, ρ {correlation}: {', '.join(judged_shares(draw, _KEPT, _MOST))}"
    for correlation in _CORRELATIONS:
        yield f"measured until within ±1 %, ρ {correlation}: {_until_precise(correlation)}"


def _until_precise(correlation: float) -> str:
    """How often an interval that also decides when to stop holds the true value.

    Also the mean number of timings.

    Timings have half the noise; there are 5 to 48, a quarter more each time.
    """
    hits = 0
    timings = 0
    for series in ((1 + drawn_series(_SERIES, 60, correlation)) / 2).tolist():
        count = 5
        while (half_width(series[:count]) or 0.0) > 0.01 and count < 48:
            count += max(1, count // 4)
        low, high = interval95(series[:count]) or (0.0, 0.0)
        hits, timings = hits + (low <= 1 <= high), timings + count
    return f"{hits / _SERIES:.1%} of {_SERIES}, after {timings / _SERIES:.0f} timings"


def _real() -> str:
    """The program itself: equal noisy runs of a quick profile.

    Each run is compared with all later ones.
    """
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name, f"{seed}.json") for seed in range(_REAL_RUNS)]
        profile = Path(name, "pair.toml")
        profile.write_text(_REAL)
        of = (
            "--simulate",
            str(profile),
            "--batches",
            "120",
            "80",
            "--baseline",
            "none",
        )
        for seed, path in enumerate(paths):
            path.write_text(
                measured(
                    "run", *of, "--windows", "3", "--duration", "4", "--seed", str(seed)
                )
            )
        found = [
            gpubalance("compare", *map(str, paths[n:]), "--json").stdout
            for n in range(_REAL_RUNS - 1)
        ]
        rates = [json.loads(path.read_text())["throughput"]["median"] for path in paths]
    pairs = [
        pair.ratio
        for item in found
        for pair in Comparison.model_validate_json(item).against_first
    ]
    different = sum(
        pair is not None and pair.verdict != "no difference" for pair in pairs
    )
    return (
        f"{_REAL_RUNS} real runs: of {len(pairs)} pairs {different} called different; "
        f"throughput differs by {statistics.stdev(rates) / statistics.mean(rates):.2%} "
        "(standard deviation)"
    )
