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
# So many tries for ends that are neighbours: memory that can be predicted takes two.
_EXACT_TRIES = 4
# The usual reason for a trial of the largest batch
ASKED_FOR = "the largest that was asked for"


@dataclass(frozen=True)
class TriedBatch:
    """A batch that was tried.

    `memory_peak_bytes` is what it took or, if it failed, asked for; None if unknown.
    """

    batch: int
    fits: bool
    memory_peak_bytes: int | None = None


@dataclass(frozen=True)
class Limit:
    """Two batches, both run: neighbours on the search's grid, or as close as was asked for.

    `fits` is a trial or one of the points, `fails` a trial. `fits` is None if even a batch of 1
    failed; `fails` is None if the largest batch asked for fits.
    """

    fits: int | None
    fails: int | None
    trials: tuple[TriedBatch, ...]


def find_limit(
    try_batch: Callable[[int, str], TriedBatch],
    points: Points = (),
    *,
    memory_bytes: int | None,
    max_batch: int,
    multiple: int = 1,
    failed: int | None = None,
    why_max: str = ASKED_FOR,
    within: float = 0.0,
    is_enough: Callable[[], bool] = lambda: False,
) -> Limit:
    """Finds the limit with trials of `try_batch(batch, reason)`.

    The same answers give the same search. `why_max` is the reason for a trial of `max_batch`. Once
    four tries have not found neighbours, ends that are `within` this part of each other will do:
    235784 fits and 244576 does not are within 0.04. The search ends as well once `is_enough` after
    a try that fits: then nothing may have failed.

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
    cheaper (half of the way if memory is unknown, and one by one near the end). `_Search` bends
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
    search = _Search(
        points, memory_bytes, max_batch, Grid(multiple), failed, why_max, within
    )
    proposal = search.proposal()
    while proposal is not None:
        batch, reason = proposal
        tried = try_batch(batch, reason)
        search.record(tried)
        if tried.fits and is_enough():
            break
        proposal = search.proposal()
    return search.limit()


def _max_tries(low: int, high: int) -> int:
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
        why_max: str,
        within: float,
    ) -> None:
        self._grid = grid
        self._why_max = why_max
        self._within = within
        self._memory = memory_bytes
        self._top = grid.rung(max_batch)
        self._peaks = dict(points)
        self._fitted = {grid.rung(batch) for batch in self._peaks if grid.has(batch)}
        self._failed: dict[int, bool] = {}  # by rung: whether its failure is certain
        high = None
        if failed is not None:
            high = grid.rung(failed)
            self._failed[high] = False
        self._trials: list[TriedBatch] = []
        largest = max(self._peaks, default=0)
        self._begin(min(self._top, grid.rung(largest)), high)

    def _begin(self, low: int, high: int | None) -> None:
        self._low = self._start = low
        self._high = high
        self._rises = 0  # since it began
        self._left = 0
        if high is not None:
            self._left = _max_tries(low, high)

    @property
    def _joined(self) -> bool:
        """Whether the ends are neighbours, or close enough."""
        return self._high is not None and self._high - self._low <= self._apart

    @property
    def _apart(self) -> int:
        """How many rungs the ends may be apart."""
        if len(self._trials) < _EXACT_TRIES:
            return 1
        return max(1, math.floor(self._within * self._low))

    def _nearest(self, wish: int) -> int:
        """The rung to try: the nearest to the wish that keeps the search short."""
        if self._high is None:
            minimum = self._start + ((1 << self._rises) >> _SPARE_TRIES)
            return max(wish, self._low + self._apart, minimum)
        # Ends that may be apart get closer by half of that with each try
        closer = (self._apart + 1) // 2
        widest = 1 << max(0, self._left - 1)
        raised = max(wish, self._low + closer, self._high - widest)
        return min(raised, self._high - closer, self._low + widest)

    def limit(self) -> Limit:
        """The ends."""
        fails = None
        if self._high is not None:
            fails = self._grid.batch(self._high)
        return Limit(self._grid.batch(self._low) or None, fails, tuple(self._trials))

    def record(self, trial: TriedBatch) -> None:
        """Takes the result of a trial."""
        self._trials.append(trial)
        rung = self._grid.rung(trial.batch)
        if trial.fits:
            self._fitted.add(rung)
            self._failed.pop(rung, None)
            if trial.memory_peak_bytes is not None:
                self._peaks[trial.batch] = trial.memory_peak_bytes
        else:
            asked_for = trial.memory_peak_bytes or 0
            self._failed[rung] = rung in self._failed or asked_for > (
                self._memory or math.inf
            )
        if rung not in (self._low, self._high):
            self._move(rung, trial.fits)
        elif trial.fits:
            above = [failed for failed in self._failed if failed > rung]
            self._begin(rung, min(above, default=None))
        else:
            below = [fitted for fitted in self._fitted if fitted < rung]
            self._begin(max(below, default=0), rung)

    def _move(self, rung: int, fits: bool) -> None:
        """Moves one end to the rung that was tried."""
        was_open = self._high is None
        if fits:
            self._low = rung
            self._rises += 1
        else:
            self._high = rung
        if self._high is not None:
            maximum = _max_tries(self._low, self._high)
            if not was_open:
                maximum = min(self._left - 1, maximum)
            self._left = maximum

    def proposal(self) -> tuple[int, str] | None:
        """The batch to try now, and why; None when both ends are known."""
        if self._joined or self._low >= self._top:
            return self._unsure_end()
        wish, reason = self._first_wish()
        rung = self._nearest(wish)
        if self._high is None and rung >= self._top:
            rung = self._top
            reason = self._why_max
        elif rung != wish:
            reason = f"memory is not as predicted; {self._ends()}"
        return self._grid.batch(rung), reason

    def _unsure_end(self) -> tuple[int, str] | None:
        """The end to try, or to try again, once both are neighbours; None if both are certain."""
        low = self._low
        high = self._high
        if low and low not in self._fitted:
            return self._grid.batch(
                low
            ), "only a larger batch was tried, no multiple of --batch-multiple"
        if high is None or self._failed[high] or not self._joined:
            return None
        batch = self._grid.batch(high)
        predicted = self._forecast()
        if predicted is None:
            return batch, f"once more, to be sure: {self._ends()}"
        if batch > predicted.best:
            return None
        return batch, f"once more, because the predicted limit is {predicted.best}"

    def _forecast(self) -> Forecast | None:
        if self._memory is None:
            return None
        return forecast(sorted(self._peaks.items()), self._memory)

    def _first_wish(self) -> tuple[int, str]:
        """The rung to try by preference, between the ends, and why."""
        if self._high is not None and self._apart > 1:
            return self._blind()  # memory has misled for four tries
        for rung, reason in self._by_memory():
            if self._low < rung and (self._high is None or rung < self._high):
                return rung, reason
        return self._blind()

    def _by_memory(self) -> Iterator[tuple[int, str]]:
        """The rungs to try by what memory predicts, the best first, and why."""
        predicted = self._forecast()
        if predicted is not None:
            yield from self._by_forecast(predicted)
        elif self._memory is not None and len(self._peaks) == 1:
            ((batch, peak),) = self._peaks.items()
            minimum = self._grid.rung(self._memory * batch // max(1, peak))
            yield (
                max(self._low + 1, minimum),
                "fits even if all of the memory grows with the batch",
            )

    def _by_forecast(self, predicted: Forecast) -> Iterator[tuple[int, str]]:
        low = self._low
        best = self._grid.rung(predicted.best)
        limit = self._grid.batch(best)
        reason = f"predicted limit {limit}, from {len(self._peaks)} batch sizes"
        # From afar, caution; later, progress.
        part = 2 if self._trials else 8
        minimum = low + math.ceil((best - low) / part)
        safe = min(best, max(self._grid.rung(predicted.sure), minimum, low + 1))
        if safe < best:
            yield safe, f"{reason}; a safe step towards it"
        yield best, reason
        yield (
            max(self._grid.rung(predicted.doubt - 1), low) + 1,
            "the smallest batch that should fail",
        )

    def _blind(self) -> tuple[int, str]:
        """The next rung between the ends if memory predicts none."""
        if self._high is None:
            if self._low:
                return 2 * self._low, "twice the batch"
            return 1, "the smallest"
        apart = self._high - self._low
        if apart <= _FEW_RUNGS:
            return self._low + 1, self._ends()
        part = 2 if self._memory is None or self._apart > 1 else 3
        return self._low + apart // part, self._ends()

    def _ends(self) -> str:
        fits = f"{self._grid.batch(self._low)} fits"
        if self._high is None and not self._low:
            return "nothing fits yet"
        if self._high is None:
            return fits
        fails = self._grid.batch(self._high)
        if not self._low:
            return f"{fails} does not fit"
        return f"{fits}, {fails} does not"


@dataclass(frozen=True)
class Grid:
    """The possible batch limits, numbered from 1.

    Below `multiple` it is every batch, from there on its multiples.
    """

    multiple: int

    def batch(self, rung: int) -> int:
        """The batch of a rung; 0 for rung 0, below the first."""
        if rung < self.multiple:
            return rung
        return (rung - self.multiple + 1) * self.multiple

    def rung(self, batch: int) -> int:
        """The last rung at or below a batch, 0 if there is none."""
        if batch < self.multiple:
            return max(0, batch)
        return batch // self.multiple + self.multiple - 1

    def has(self, batch: int) -> bool:
        """Whether a batch is a rung."""
        return self.batch(self.rung(batch)) == batch
