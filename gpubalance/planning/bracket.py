"""Narrows down the two ends of a search for the largest batch that fits."""

from __future__ import annotations

_SPARE_TRIES = 5


class Bracket:
    """The two ends of a search: `low` fits, `high` does not, or is None until something fails.

    The search tries what it wishes, or the nearest batch that keeps it short, however memory behaves:

    - open, the n-th try is at least 2ⁿ⁻⁶ above the start: after at most ⌈log₂ top⌉ + 6 tries `low` is at the top or
      the bracket is closed;
    - closed with its ends N apart, at most ⌈log₂ N⌉ + 5 tries make them neighbours: bisection's worst case and five.
      With t tries left each part of the bracket must be at most 2ᵗ⁻¹ wide. That leaves a choice while N ≤ 2ᵗ, and
      keeps it so (the projection of the ITP method: Oliveira and Takahashi 2020, doi:10.1145/3423597). Tries that good
      guesses saved are not kept for later.
    """

    def __init__(self, low: int, high: int | None = None) -> None:
        self.low = low
        self.high = high
        self._start = low
        self._fitted = 0
        self._left = 0 if high is None else _most_tries(low, high)

    @property
    def joined(self) -> bool:
        """Whether the ends are neighbours."""
        return self.high is not None and self.high - self.low <= 1

    def contains(self, wish: int) -> bool:
        """Whether a wish is between the ends."""
        return self.low < wish and (self.high is None or wish < self.high)

    def nearest(self, wish: int) -> int:
        """The batch to try: the nearest to the wish that keeps the search short."""
        if self.high is None:
            return max(wish, self.low + 1, self._start + ((1 << self._fitted) >> _SPARE_TRIES))
        widest = 1 << max(0, self._left - 1)
        return min(max(wish, self.low + 1, self.high - widest), self.high - 1, self.low + widest)

    def tell(self, tried: int, fits: bool) -> None:
        """Moves one end to the batch that was tried."""
        was_open = self.high is None
        if fits:
            self.low = tried
            self._fitted += 1
        else:
            self.high = tried
        if self.high is not None:
            most = _most_tries(self.low, self.high)
            self._left = most if was_open else min(self._left - 1, most)


def _most_tries(low: int, high: int) -> int:
    return (high - low - 1).bit_length() + _SPARE_TRIES
