"""Finds a device's batch limit: the largest batch that ran, and its neighbour that ran and failed.

A search over "try this batch"; pure, without process, clock or TensorFlow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpubalance.planning.memory import Forecast, Points, forecast

# Tries that the search may need beyond those of bisection, before and after something fails.
_SPARE_TRIES = 5
# Ends this close are searched from below, one batch at a time: then only one try can fail.
_FEW_RUNGS = 6


@dataclass(frozen=True)
class TriedBatch:
    """A batch that was tried. `memory_peak_bytes` is what it took or, if it failed, asked for; None
    if unknown.
    """

    batch: int
    fits: bool
    memory_peak_bytes: int | None = None


@dataclass(frozen=True)
class Limit:
    """Neighbours on the search's grid, both run: `fits` is a trial or one of the points, `fails` a
    trial.

    `fits` is None if even a batch of 1 failed; `fails` is None if the largest batch asked for fits.
    """

    fits: int | None
    fails: int | None
    trials: tuple[TriedBatch, ...]


@dataclass(frozen=True)
class Grid:
    """The possible batch limits, numbered from 1: below `multiple` every batch, from there on its
    multiples.
    """

    multiple: int

    def batch(self, rung: int) -> int:
        """The batch of a rung; 0 for rung 0, below the first."""
        return rung if rung < self.multiple else (rung - self.multiple + 1) * self.multiple

    def rung(self, batch: int) -> int:
        """The last rung at or below a batch, 0 if there is none."""
        return (
            max(0, batch) if batch < self.multiple else batch // self.multiple + self.multiple - 1
        )

    def has(self, batch: int) -> bool:
        """Whether a batch is a rung."""
        return self.batch(self.rung(batch)) == batch


def find_limit(
    try_batch: Callable[[int, str], TriedBatch],
    points: Points = (),
    *,
    memory_bytes: int | None,
    max_batch: int,
    multiple: int = 1,
    failed: int | None = None,
) -> Limit:
    """Finds the limit with trials of `try_batch(batch, reason)`; the same answers give the same
    search.

    Problem: among the multiples of `multiple` up to `max_batch`, and all batches below the first of
    them, find two neighbours, both tried, of which one fits and the next fails. Use few tries, and
    few that fail, as running out of memory costs far more than a step. `points` are (batch, peak
    bytes) that ran: they fit, and are not tried again. `failed` is a larger batch that ran and
    failed, if there is one. If fitting is not monotone there are several such pairs; it returns
    one. `memory_bytes` is the device's memory, None if unknown.

    Method: predict, then confirm. From the memory of the points and of the trials that fitted (see
    `Forecast`) try in turn: what surely fits, or at least part of the way to what fits at best;
    that best; and the smallest that should fail. If memory gives nothing between the two ends, try
    twice the batch, or, once one end failed, a third of the way towards it, as a try that fits is
    cheaper (half of the way if memory is unknown, and one by one near the end). `Bracket` bends
    each wish to keep the search short.

    A failure may be chance: another program's memory, a fragmented allocator. So the failure that
    decides is tried once more if memory says that the batch should fit, or says nothing. If it then
    fits, the search goes on above it.

    Tries: two, one of them failing, for linear memory with two points or more. Four without points:
    a batch of 1; the batch that fits if all of its memory grows with the batch, as fixed memory
    only leaves room for more; and those two. For any memory at most 2·⌈log₂ n⌉ + 12 on a grid of n
    batches: ⌈log₂ n⌉ + 6 until one fails, ⌈log₂ n⌉ + 5 until they are neighbours (`_Search`), one
    more if the largest point is no multiple, and one for the failure that decides. If the first of
    these fails, though a larger batch ran, the search closes the ends once more below it; each
    chance failure adds as many tries again. Among w batches that memory can't tell apart, as on the
    tread of an allocator's staircase, a try says only fits or not: there every search needs log₂ w
    tries. Passes on what `try_batch` raises.
    """
    state = _Search(points, memory_bytes, max_batch, Grid(multiple), failed)
    while (proposal := state.next()) is not None:
        state.tell(try_batch(*proposal))
    return state.limit()


def _most_tries(low: int, high: int) -> int:
    return (high - low - 1).bit_length() + _SPARE_TRIES


class _Search:
    """The state of the search. It counts in rungs of the grid.

    Its ends are `low`, which fits, and `high`, which does not, or is None until something fails. It
    tries what it wishes, or the nearest batch that keeps it short, however memory behaves:

    - open, the n-th try is at least 2ⁿ⁻⁶ above the start: after at most ⌈log₂ top⌉ + 6 tries `low`
      is at the top or something has failed;
    - closed with its ends N apart, at most ⌈log₂ N⌉ + 5 tries make them neighbours: bisection's
      worst case and five. With t tries left each part between them must be at most 2ᵗ⁻¹ wide. That
      leaves a choice while N ≤ 2ᵗ, and keeps it so (the projection of the ITP method: Oliveira and
      Takahashi 2020, doi:10.1145/3423597). Tries that good guesses saved are not kept for later.
    """

    def __init__(
        self,
        points: Points,
        memory_bytes: int | None,
        max_batch: int,
        grid: Grid,
        failed: int | None,
    ) -> None:
        self._grid = grid
        self._memory = memory_bytes
        self._top = grid.rung(max_batch)
        self._peaks = dict(points)
        self._fitted = {grid.rung(batch) for batch in self._peaks if grid.has(batch)}
        high = None if failed is None else grid.rung(failed)
        # Rung → whether its failure is certain.
        self._failed = {} if high is None else {high: False}
        self._trials: list[TriedBatch] = []
        self._begin(min(self._top, grid.rung(max(self._peaks, default=0))), high)

    def _begin(self, low: int, high: int | None) -> None:
        self._low, self._high, self._start = low, high, low
        self._rises = 0  # since it began
        self._left = 0 if high is None else _most_tries(low, high)

    @property
    def _joined(self) -> bool:
        """Whether the ends are neighbours."""
        return self._high is not None and self._high - self._low <= 1

    def _nearest(self, wish: int) -> int:
        """The rung to try: the nearest to the wish that keeps the search short."""
        low, high = self._low, self._high
        if high is None:
            return max(wish, low + 1, self._start + ((1 << self._rises) >> _SPARE_TRIES))
        widest = 1 << max(0, self._left - 1)
        return min(max(wish, low + 1, high - widest), high - 1, low + widest)

    def limit(self) -> Limit:
        """The ends."""
        fails = None if self._high is None else self._grid.batch(self._high)
        return Limit(self._grid.batch(self._low) or None, fails, tuple(self._trials))

    def tell(self, trial: TriedBatch) -> None:
        """Records the result of a trial."""
        self._trials.append(trial)
        rung = self._grid.rung(trial.batch)
        if trial.fits:
            self._fitted.add(rung)
            self._failed.pop(rung, None)
            if trial.memory_peak_bytes is not None:
                self._peaks[trial.batch] = trial.memory_peak_bytes
        else:
            asked_for = trial.memory_peak_bytes or 0
            self._failed[rung] = rung in self._failed or asked_for > (self._memory or math.inf)
        if rung not in (self._low, self._high):
            self._move(rung, trial.fits)
        elif trial.fits:
            self._begin(rung, min((r for r in self._failed if r > rung), default=None))
        else:
            self._begin(max((r for r in self._fitted if r < rung), default=0), rung)

    def _move(self, rung: int, fits: bool) -> None:
        """Moves one end to the rung that was tried."""
        left = math.inf if self._high is None else self._left - 1
        if fits:
            self._low = rung
            self._rises += 1
        else:
            self._high = rung
        if self._high is not None:
            self._left = int(min(left, _most_tries(self._low, self._high)))

    def next(self) -> tuple[int, str] | None:
        """The batch to try now, and why; None when both ends are known."""
        if self._joined or self._low >= self._top:
            return self._unsure_end()
        high = math.inf if self._high is None else self._high
        wish, reason = next((wish, why) for wish, why in self._wishes() if self._low < wish < high)
        rung = self._nearest(wish)
        if self._high is None and rung >= self._top:
            rung, reason = self._top, "the largest that was asked for"
        elif rung != wish:
            reason = f"memory is not as predicted; {self._ends()}"
        return self._grid.batch(rung), reason

    def _unsure_end(self) -> tuple[int, str] | None:
        """The end that must be tried, or tried again, once the two are neighbours; None if both are
        certain.
        """
        low, high = self._low, self._high
        if low and low not in self._fitted:
            return (self._grid.batch(low), "only a larger batch was run, which is no multiple")
        if high is None or self._failed[high] or not self._joined:
            return None
        batch, said = self._grid.batch(high), self._forecast()
        if said is None:
            return (batch, f"once more, to be sure: {self._ends()}")
        return (batch, f"once more, as memory predicts {said.best}") if batch <= said.best else None

    def _forecast(self) -> Forecast | None:
        return None if self._memory is None else forecast(sorted(self._peaks.items()), self._memory)

    def _wishes(self) -> Iterator[tuple[int, str]]:
        """The rungs to try, the best first, and why."""
        said = self._forecast()
        if said is not None:
            yield from self._foretold(said)
        elif self._memory is not None and len(self._peaks) == 1:
            ((batch, peak),) = self._peaks.items()
            least = self._grid.rung(self._memory * batch // max(1, peak))
            yield max(self._low + 1, least), "fits even if all of the memory grows with the batch"
        yield self._blind()

    def _foretold(self, said: Forecast) -> Iterator[tuple[int, str]]:
        low, aim = self._low, self._grid.rung(said.best)
        predicted = f"the memory of {len(self._peaks)} batches predicts {self._grid.batch(aim)}"
        # From afar, caution; later, progress.
        least = low + math.ceil((aim - low) / (2 if self._trials else 8))
        safe = min(aim, max(self._grid.rung(said.sure), least, low + 1))
        yield safe, predicted if safe == aim else f"{predicted}; a safe step towards it"
        yield aim, predicted
        yield max(self._grid.rung(said.doubt - 1), low) + 1, "the smallest that should fail"

    def _blind(self) -> tuple[int, str]:
        """The next rung between the ends if memory predicts none."""
        low, high = self._low, self._high
        if high is None:
            return max(1, 2 * low), "twice the batch" if low else "the smallest"
        if high - low <= _FEW_RUNGS:
            return low + 1, self._ends()
        return low + (high - low) // (3 if self._memory is not None else 2), self._ends()

    def _ends(self) -> str:
        low, high = self._low, self._high
        if not low:
            return "nothing fits yet" if high is None else f"{self._grid.batch(high)} does not fit"
        fits = f"{self._grid.batch(low)} fits"
        return fits if high is None else f"{fits}, {self._grid.batch(high)} does not"
