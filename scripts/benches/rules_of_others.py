"""Rules that others have published for sharing a batch out, each written from its source.

A rule yields what it wants measured next and gets the mean seconds of each device. It keeps the
global batch, and each device's limit, which it is told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Split: TypeAlias = tuple[int, ...]
Model: TypeAlias = Callable[[Any], Any]  # of a step's seconds by its samples
_WINDOW = 10  # steps


class Ask(NamedTuple):
    """A split to train with for so many steps; or batches that each device does `alone`."""

    split: Split
    steps: int = _WINDOW
    alone: bool = False


Rule: TypeAlias = Callable[["Given"], Generator[Ask, Sequence[float], None]]


class Given(NamedTuple):
    """What a rule knows beforehand."""

    global_batch: int
    limits: Split

    def equal(self) -> Split:
        """Equal shares, as far as the limits let them be."""
        return self.rounded([1.0] * len(self.limits))

    def rounded(self, wanted: Sequence[float]) -> Split:
        """Whole shares of the global batch in this proportion, at least one sample each."""
        fixed: dict[int, int] = {}
        while True:
            free = [n for n in range(len(wanted)) if n not in fixed]
            left = self.global_batch - sum(fixed.values())
            whole = sum(wanted[n] for n in free)
            exact = {n: left * wanted[n] / whole for n in free}
            over = {n: self.limits[n] for n in free if exact[n] > self.limits[n]}
            if not over:
                break
            fixed |= over
        shares = {**fixed, **{n: max(1, int(size)) for n, size in exact.items()}}
        by_rest = [*sorted(exact, key=lambda n: exact[n] % 1, reverse=True), *fixed]
        while missing := self.global_batch - sum(shares.values()):
            change = 1 if missing > 0 else -1
            able = [n for n in by_rest if 1 <= shares[n] + change <= self.limits[n]]
            for n in able[: abs(missing)]:
                shares[n] += change
        return tuple(shares[n] for n in range(len(wanted)))

    def moved(self, split: Split, giver: int, taker: int, maximum: int) -> Split:
        """The split with up to so many samples of one device given to another."""
        count = min(maximum, split[giver] - 1, self.limits[taker] - split[taker])
        new = list(split)
        new[giver] -= count
        new[taker] += count
        return tuple(new)


def equal(given: Given) -> Generator[Ask, Sequence[float], None]:
    """TensorFlow's: equal shares for ever."""
    while True:
        yield Ask(given.equal())


def by_hand(given: Given) -> Generator[Ask, Sequence[float], None]:
    """The tutorial's author, jinkos: b₁ = b₀ · r₁/r₀ once, by the rates seen at equal shares."""
    split = given.equal()
    times = yield Ask(split)
    split = given.rounded([batch / s for batch, s in zip(split, times, strict=True)])
    while True:
        yield Ask(split)


def dbs(given: Given) -> Generator[Ask, Sequence[float], None]:
    """DBS: pᵢ ← (pᵢ/tᵢ) / Σ(pⱼ/tⱼ) after each epoch.

    Soptq/Dynamic_Batch-Size_DistributedDNN.
    """
    split = given.equal()
    while True:
        times = yield Ask(split)
        split = given.rounded(
            [batch / s for batch, s in zip(split, times, strict=True)]
        )


def omnilearn(given: Given) -> Generator[Ask, Sequence[float], None]:
    """OmniLearn: Δbᵢ = −(bᵢ/t̄ᵢ)(t̄ᵢ − mean t̄), where |Δb/b| ≥ 0.2. sahiltyagi4/OmniLearn."""
    split = given.equal()
    while True:
        times = yield Ask(split)
        mean_s = sum(times) / len(times)
        changed = [batch * mean_s / s for batch, s in zip(split, times, strict=True)]
        off = [abs(new / old - 1) for new, old in zip(changed, split, strict=True)]
        if max(off) >= 0.2:
            split = given.rounded(changed)


def lb_bsp(given: Given) -> Generator[Ask, Sequence[float], None]:
    """LB-BSP on GPUs: the slowest gives Δ = 5 to the fastest, halved on reversal.

    arXiv 1806.02508.
    """
    split = given.equal()
    delta = 5
    before: tuple[int, int] | None = None
    while True:
        times = list((yield Ask(split)))
        slowest = int(np.argmax(times))
        fastest = int(np.argmin(times))
        if before == (fastest, slowest):
            delta = max(1, delta // 2)
        before = slowest, fastest
        split = given.moved(split, slowest, fastest, delta)


def lbb(given: Given) -> Generator[Ask, Sequence[float], None]:
    """LBB, algorithm 2: cubics through the times of 2^p samples, and the split that evens them.

    Then one sample a step goes from the slowest to the fastest while they differ by less than 15 %;
    beyond that it fits again, with what was seen. FLYING37520/LBB.
    """
    seen: list[dict[int, float]] = [{} for _ in given.limits]
    size = 2
    while size <= max(given.limits):
        batches = tuple(min(size, limit) for limit in given.limits)
        for device, seconds in enumerate((yield Ask(batches, 5, alone=True))):
            seen[device][batches[device]] = seconds
        size *= 2
    split = _evened(given, list(map(_cubic, seen)))
    while True:
        times = list((yield Ask(split, 1)))
        for device, seconds in enumerate(times):
            seen[device][split[device]] = seconds
        if max(times) - min(times) < 0.15 * max(times):
            split = given.moved(split, int(np.argmax(times)), int(np.argmin(times)), 1)
        else:
            split = _evened(given, list(map(_cubic, seen)))


def _cubic(seen: dict[int, float]) -> Model:
    degree = min(3, len(seen) - 1)
    return np.poly1d(np.polyfit(list(seen), list(seen.values()), degree))


def _evened(given: Given, models: Sequence[Model]) -> Split:
    """The split whose longest time is the least by these models, which may fall in places."""
    tables = []
    for model, limit in zip(models, given.limits, strict=True):
        tables.append(np.maximum.accumulate(model(np.arange(1, limit + 1))))
    low = 0.0
    high = max(float(table[-1]) for table in tables)
    for _ in range(60):
        middle = (low + high) / 2
        maximum = sum(int(np.searchsorted(table, middle, "right")) for table in tables)
        low, high = (low, middle) if maximum >= given.global_batch else (middle, high)
    return given.rounded(
        [max(1, int(np.searchsorted(t, high, "right"))) for t in tables]
    )


def cannikin(given: Given) -> Generator[Ask, Sequence[float], None]:
    """Cannikin: equal times by a line through each device's batches so far. arXiv 2402.05302.

    The first two epochs are equal shares, then shares by rate. Sync is not hidden here (γ = 0).
    """
    seen: list[dict[int, list[float]]] = [defaultdict(list) for _ in given.limits]
    split = given.equal()
    while True:
        times = yield Ask(split)
        for device, seconds in enumerate(times):
            seen[device][split[device]].append(seconds)
        if min(len(of) for of in seen) < 2:
            rates = [
                batch / seconds for batch, seconds in zip(split, times, strict=True)
            ]
            new = given.rounded(rates)
            if new == split:  # already even: no line is known, and none is needed
                new = split
        else:
            new = _evened(given, list(map(_line, seen)))
        split = new


def _line(seen: dict[int, list[float]]) -> Model:
    points = [(batch, seconds) for batch, of in seen.items() for seconds in of]
    batches, times = np.array(points).T
    slope, begin = np.polyfit(batches, times, 1)
    return np.poly1d((max(slope, 1e-9), begin))


RULES: dict[str, Rule] = {
    "equal": equal,
    "by hand": by_hand,
    "DBS": dbs,
    "OmniLearn": omnilearn,
    "LB-BSP": lb_bsp,
    "LBB": lbb,
    "Cannikin": cannikin,
}
