"""Judges a figure against its bounds: measures on until its 95 % interval is clear of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from gpubalance.numbers.stats import median
from tests.support.share import Share

Decision = Literal["met", "missed", "not decided"]

_LEAST = 6  # for an interval


class Wanted(NamedTuple):
    """A lower bound, an upper one or both."""

    minimum: float = -math.inf
    maximum: float = math.inf

    def decision(self, low: float, high: float) -> Decision:
        """Whether a figure with this interval is within the bounds or outside, or neither yet."""
        if self.minimum <= low and high <= self.maximum:
            return "met"
        return "missed" if high < self.minimum or low > self.maximum else "not decided"

    def __str__(self) -> str:
        if self.maximum == math.inf:
            return f"at least {self.minimum:g}"
        return (
            f"at most {self.maximum:g}"
            if self.minimum == -math.inf
            else f"{self.minimum:g} to {self.maximum:g}"
        )


def _looks(first: int, maximum: int) -> Iterator[int]:
    """Looks after `first`, twice as many, and so on up to `maximum`.

    Who looks after each one sooner or later sees what they want to see.
    """
    while first < maximum:
        yield first
        first *= 2
    yield maximum


def judged(ratios: Iterator[float], wanted: Wanted, maximum: int) -> str:
    """Takes up to `maximum` ratios until their median meets or misses what is wanted.

    Difference the timings of one run, ratios of processes, or of two things in turns, are independent:
    so the interval is that of order statistics (Conover, Practical Nonparametric Statistics, 3.2).
    At each look it holds the median 95 times in 100 or more, for any distribution: of several
    looks, one is off somewhat more often.
    """
    # It takes a second, and most who collect the tests do not need it.
    from scipy.stats import quantile_test

    taken: list[float] = []
    for count in _looks(_LEAST, maximum):
        taken += islice(ratios, count - len(taken))
        low, high = quantile_test(taken, q=1.0, p=0.5).confidence_interval(0.95)
        decision = wanted.decision(low, high)
        if decision != "not decided":
            break
    return (
        f"{median(taken):.3f} (95 %: {low:.3f} to {high:.3f}), {len(taken)} times; wanted "
        f"{wanted}: {decision}"
    )


def judged_shares(
    draw: Callable[[int], Sequence[Share]], wanted: Sequence[Wanted], maximum: int
) -> list[str]:
    """Adds up to `maximum` draws of shares until each share meets or misses what is wanted.

    The draws are `draw(n)`, n = 0, 1, …
    """
    drawn: list[Sequence[Share]] = []
    for count in _looks(1, maximum):
        drawn += map(draw, range(len(drawn), count))
        shares = []
        for each in zip(*drawn, strict=True):
            count_of_all = sum(share.count for share in each)
            shares.append(Share(count_of_all, sum(share.of for share in each)))
        decisions = [
            one.decision(*share.interval)
            for share, one in zip(shares, wanted, strict=True)
        ]
        if "not decided" not in decisions:
            break
    return [
        f"{share.part:.1%} of {share.of} ({now})"
        for share, now in zip(shares, decisions, strict=True)
    ]
