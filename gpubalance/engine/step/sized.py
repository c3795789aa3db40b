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

    Shares get theirs at once, unless it `awaits_lasting`. Then the function of any size trains them
    until they have lasted for as long as making the last one took, 8 to 25 s for a network of 30
    convolutions: a split that does not last so long never pays for it, and one that does loses at
    most as much again. How long the first one takes is told by the first run of the function of any
    size, which TensorFlow optimises then: else the first change would wait for that.
    """

    def __init__(
        self,
        make: Callable[[BatchSplit], Any],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._clock = clock
        self._functions: dict[BatchSplit, Any] = {}  # the one used last is last
        self._shares: BatchSplit | None = None
        self._since_s = 0.0
        self._any_has_run = False  # the function of any size
        self._making_s = 0.0  # of the last one, with its first step
        self._made_from_s: float | None = None

    def of(self, shares: BatchSplit, *, awaits_lasting: bool) -> tuple[Any, bool]:
        """The function for these shares, None for that of any size; and whether it runs first."""
        now_s = self._clock()
        if self._made_from_s is not None:
            # TensorFlow optimises a function when it runs first.
            self._making_s = now_s - self._made_from_s
            self._made_from_s = None
            self._since_s = now_s  # in that time no step has gained from it
        if shares != self._shares:
            self._shares = shares
            self._since_s = now_s
        if awaits_lasting and not self._any_has_run:
            self._any_has_run = True
            self._made_from_s = now_s
            return None, True
        is_new = shares not in self._functions
        if is_new:
            lasted_s = now_s - self._since_s
            if awaits_lasting and lasted_s < self._making_s:
                return None, False
            self._made_from_s = now_s
            self._functions[shares] = self._make(shares)
            if len(self._functions) > _KEPT:
                del self._functions[next(iter(self._functions))]
        self._functions[shares] = self._functions.pop(shares)
        return self._functions[shares], is_new
