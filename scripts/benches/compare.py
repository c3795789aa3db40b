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
from random import Random
from typing import NamedTuple

import numpy as np

from gpubalance.numbers.ratio import Ratio, ratio
from gpubalance.numbers.stats import half_width, interval95, median
from gpubalance.numbers.steady import is_steady
from gpubalance.results.comparison import Comparison
from gpubalance.results.run import Run
from gpubalance.settings.measuring import Measuring
from scripts.benches.wanted import Share, Wanted, judged_shares
from tests.cli.program import ROOT, gpubalance
from tests.jobs.drawn import drawn_run, noisy_devices
from tests.support.turns import measured

_NOISE = 0.02
_SLOWER = 1.03
_MOST = 8  # times the first draws
_COMPARISONS = 200
_CALLED = (Wanted(most=0.05), Wanted(0.9))
_SPLITS = {"gtx1080ti-gtx1080": (820, 568), "quick-pair": (120, 80)}
_SHORT = Measuring(windows=3, duration_s=3.0, baseline="none")
_BETWEEN = (0.005, 0.01)  # which no run's own interval includes
_SERIES = 2000
_KEPT = (Wanted(0.92), Wanted(most=0.05), Wanted(0.9), Wanted(most=0.05))
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
        _SPLITS, (None, _SHORT), (0.0, 0.5, 0.9)
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


def called_different(
    name: str,
    number: int = 0,
    *,
    correlation: float = 0.0,
    between: float = 0.0,
    measuring: Measuring | None = None,
    count: int = _COMPARISONS,
) -> list[Share]:
    """How many pairs of runs of one profile are called different.

    Also how many are with a second run of a profile that is 3 % slower.

    Each run as a whole is off by `between`, a relative standard deviation. Each `number` draws
    other runs.
    """

    def run(seed: int, slower: float = 1.0) -> Run:
        off = Random(f"{name} {seed}").gauss(1.0, between)
        devices, joint = noisy_devices(
            ROOT / "configs" / f"{name}.toml", _NOISE, slower * off
        )
        return drawn_run(
            devices,
            joint,
            _SPLITS[name],
            seed=seed,
            correlation=correlation,
            measuring=measuring,
        )

    same = slower = 0
    for seed in range(3 * number * count, 3 * (number + 1) * count, 3):
        first = run(seed)
        same += _differ(first, run(seed + 1))
        slower += _differ(first, run(seed + 2, _SLOWER))
    return [Share(same, count), Share(slower, count)]


def _differ(baseline: Run, other: Run) -> bool:
    """Whether `compare` calls the runs different."""
    value = other.throughput.median / baseline.throughput.median
    return (
        ratio(value, other.step_time_s.samples, baseline.step_time_s.samples).verdict
        != "no difference"
    )


class Kept(NamedTuple):
    """How often promises are kept.

    `covered` is how often the interval holds the true median, `called_different` how often equal
    series are called different. `found` is how often a true difference that one pair of series
    calls detectable is found in another pair.
    """

    covered: Share
    called_different: Share
    found: Share
    called_unsteady: Share


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


def promises(count: int, correlation: float, draws: int, number: int = 0) -> Kept:
    """The shares for `draws` random series of `count` timings, each correlated with the next.

    `number` is the seed.
    """
    series = _drawn(4 * draws, count, correlation, number).tolist()
    firsts = series[0::4]
    seconds = series[1::4]
    others = series[2::4]
    fasters = series[3::4]
    intervals = [interval95(times_s) or (0.0, 0.0) for times_s in firsts]
    pairs = [_ratio(a, b) for a, b in zip(firsts, seconds, strict=True)]
    found = []
    for pair, slow, fast in zip(pairs, others, fasters, strict=True):
        gain = 1 + (pair.detectable or 0.0)
        found.append(_ratio(slow, [time / gain for time in fast]))
    return Kept(
        covered=Share(sum(low <= 1 <= high for low, high in intervals), draws),
        called_different=Share(
            sum(pair.verdict != "no difference" for pair in pairs), draws
        ),
        found=Share(sum(pair.verdict == "faster" for pair in found), draws),
        called_unsteady=Share(sum(not is_steady(one) for one in firsts), draws),
    )


def _until_precise(correlation: float) -> str:
    """How often an interval that also decides when to stop holds the true value.

    Also the mean number of timings.

    Timings have half the noise; there are 5 to 48, a quarter more each time.
    """
    hits = 0
    timings = 0
    for series in ((1 + _drawn(_SERIES, 60, correlation)) / 2).tolist():
        count = 5
        while (half_width(series[:count]) or 0.0) > 0.01 and count < 48:
            count += max(1, count // 4)
        low, high = interval95(series[:count]) or (0.0, 0.0)
        hits, timings = hits + (low <= 1 <= high), timings + count
    return f"{hits / _SERIES:.1%} of {_SERIES}, after {timings / _SERIES:.0f} timings"


def _drawn(series: int, count: int, correlation: float, seed: int = 0) -> np.ndarray:
    """Stationary first-order autoregressions around 1, as [series][timing]."""
    fresh = np.random.default_rng(seed).standard_normal((series, count))
    off = fresh.copy()
    for i in range(1, count):
        off[:, i] = (
            correlation * off[:, i - 1] + (1 - correlation**2) ** 0.5 * fresh[:, i]
        )
    return 1 + _NOISE * off


def _ratio(baseline: list[float], other: list[float]) -> Ratio:
    return ratio(median(baseline) / median(other), other, baseline)


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
