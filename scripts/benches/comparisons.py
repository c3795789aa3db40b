"""How often a comparison of drawn runs, or of drawn series of timings, says what is true."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import numpy as np

from gpubalance.numbers.stats import Ratio, interval95, median, ratio
from gpubalance.numbers.steady import is_steady
from gpubalance.results.run import Run
from gpubalance.settings.measuring import Measuring
from tests.cli.program import ROOT
from tests.jobs.drawn import drawn_run, noisy_devices
from tests.support.share import Share

_NOISE = 0.02
SPLITS = {"gtx1080ti-gtx1080": (820, 568), "quick-pair": (120, 80)}
_SLOWER = 1.03
_COMPARISONS = 200


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
        off = slower * Random(f"{name} {seed}").gauss(1.0, between)
        given = noisy_devices(ROOT / "configs" / f"{name}.toml", _NOISE, off)
        how: Any = {"correlation": correlation, "measuring": measuring}
        return drawn_run(*given, SPLITS[name], seed=seed, **how)

    same = slower = 0
    for seed in range(3 * number * count, 3 * (number + 1) * count, 3):
        first = run(seed)
        same += _differ(first, run(seed + 1))
        slower += _differ(first, run(seed + 2, _SLOWER))
    return [Share(same, count), Share(slower, count)]


def _differ(baseline: Run, other: Run) -> bool:
    """Whether `compare` calls the runs different."""
    value = other.throughput.median / baseline.throughput.median
    samples = other.step_time_s.samples, baseline.step_time_s.samples
    return ratio(value, *samples).verdict != "no difference"


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


def promises(count: int, correlation: float, draws: int, number: int = 0) -> Kept:
    """The shares for `draws` random series of `count` timings, each correlated with the next.

    `number` is the seed.
    """
    series = drawn_series(4 * draws, count, correlation, number).tolist()
    firsts, seconds, others, fasters = (series[place::4] for place in range(4))
    intervals = [interval95(times_s) or (0.0, 0.0) for times_s in firsts]
    pairs = [_ratio(a, b) for a, b in zip(firsts, seconds, strict=True)]
    found = []
    for pair, slow, fast in zip(pairs, others, fasters, strict=True):
        gain = 1 + (pair.detectable or 0.0)
        found.append(_ratio(slow, [time / gain for time in fast]))
    counts = (
        sum(low <= 1 <= high for low, high in intervals),
        sum(pair.verdict != "no difference" for pair in pairs),
        sum(pair.verdict == "faster" for pair in found),
        sum(not is_steady(one) for one in firsts),
    )
    return Kept(*(Share(count, draws) for count in counts))


def drawn_series(series: int, count: int, correlation: float, seed: int = 0) -> Any:
    """Stationary first-order autoregressions around 1, as [series][timing]."""
    fresh = np.random.default_rng(seed).standard_normal((series, count))
    off, own = fresh.copy(), (1 - correlation**2) ** 0.5
    for i in range(1, count):
        off[:, i] = correlation * off[:, i - 1] + own * fresh[:, i]
    return 1 + _NOISE * off


def _ratio(baseline: list[float], other: list[float]) -> Ratio:
    return ratio(median(baseline) / median(other), other, baseline)
