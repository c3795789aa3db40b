"""Functions of a step for batches of one size, which are worth making once a split has lasted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpubalance.settings.batch_split import BatchSplit

# Splits go to and fro between few; each function takes some 40 MiB of the host's memory.
_KEPT = 3


class SizedFunctions:
    """The functions of one kind of step, each for shares of certain sizes.

    The first shares get theirs at once. With `awaits_lasting` later ones get it when they have
    trained for as long as making the last one took, 8 to 25 s for a network of 30 convolutions: a
    split that does not last so long never pays for it, and one that does loses at most as much
    again. Else they get it at once, as what is measured is a split that lasts.
    """

    def __init__(
        self,
        make: Callable[[BatchSplit], Any],
        *,
        awaits_lasting: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._awaits_lasting = awaits_lasting
        self._clock = clock
        self._functions: dict[BatchSplit, Any] = {}  # the one used last is last
        self._shares: BatchSplit | None = None
        self._since_s = 0.0
        self._making_s = 0.0  # of the last one, with its first step
        self._made_from_s: float | None = None

    def of(self, shares: BatchSplit) -> tuple[Any, bool]:
        """The function for these shares, or None, and whether it was made now."""
        now_s = self._clock()
        if self._made_from_s is not None:
            # TensorFlow optimises a function when it runs first.
            self._making_s = now_s - self._made_from_s
            self._made_from_s = None
        if shares != self._shares:
            self._shares = shares
            self._since_s = now_s
        is_new = shares not in self._functions
        if is_new:
            lasted_s = now_s - self._since_s
            if self._awaits_lasting and lasted_s < self._making_s:
                return None, False
            self._made_from_s = now_s
            self._functions[shares] = self._make(shares)
            if len(self._functions) > _KEPT:
                del self._functions[next(iter(self._functions))]
        self._functions[shares] = self._functions.pop(shares)
        return self._functions[shares], is_new
