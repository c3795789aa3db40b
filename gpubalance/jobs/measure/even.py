"""The even split that a run is compared with, and how it is made to fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gpubalance.errors import BadInput, OutOfMemory
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.measure.fitting import Fitting
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.warnings import warning
from gpubalance.results.common import Warning_
from gpubalance.settings.requests import RunRequest
from gpubalance.settings.shares import Shares
from gpubalance.workers.party import Party

# How many numbers of micro-batches are tried until the even split fits, as sums of gradients take memory too.
_PIECES_TRIED = 3


@dataclass
class Even:
    """The even split of a run's global batch, warmed up: its `series`, or None if there is none to measure.

    `own` is the run's own split, warmed up before. `is_own`: that is the even one. `largest` has the largest equal
    shares in one piece, as Keras would take them, if the even split needs micro-batches. `best_at_largest` has their
    global batch in the split that `best_of` gives for it, None if that is unknown or the same. Both are measured by
    `beside` as soon as they are known to fit.
    """

    party: Party
    own: Series
    request: RunRequest
    watch: Watch
    beside: Callable[[Series], None]
    best_of: Callable[[int], Shares | None]
    series: Series | None = None
    largest: Series | None = None
    best_at_largest: Series | None = None
    is_own: bool = False
    warnings: list[Warning_] = field(default_factory=list)

    def warm_up(self) -> None:
        """Finds out how it fits and warms it up; if it does not fit at all, says so and gives it up."""
        split, devices = self.request.split, self.request.devices
        even = Shares.even(split.global_batch, len(devices))
        self.is_own = even == split and len(devices) > 1
        if self.is_own or len(devices) == 1:
            return
        fitting = Fitting(self.party, self.request, self.watch, self.own.memory_peak_bytes)
        where = fitting.too_small_for(even)
        try:
            if where is None:
                self.series = self._warm(even)
                return
        except OutOfMemory as error:
            where = "a device" if error.replica is None else devices[error.replica].label
        try:
            self._divide(even, where, fitting)
        except OutOfMemory as again:
            self.give_up(again)

    def give_up(self, error: OutOfMemory) -> None:
        """Goes on without the even split."""
        self.watch(Doing(f"{error.message}: going on without the even split"))
        self.series = None
        self.warnings.append(warning("even-split-out-of-memory", what=error.message))

    def _divide(self, even: Shares, where: str, fitting: Fitting) -> None:
        """Takes the even split in micro-batches, beside the largest equal shares in one piece, or only those."""
        self.watch(Doing(f"the even split {even} does not fit on {where}; looking for the largest equal shares"))
        share = fitting.largest_even_share(max(even.batches))
        if share == max(even.batches):
            self.series = self._warm(even)
            return
        shares = Shares((share,) * len(even.batches))
        largest = self._series(shares, "largest even")
        self.beside(largest)  # now, as it has just been trained with
        best = self._best_beside(shares)
        divided = self._in_pieces(even, share)
        if divided is None:
            self.series = self._series(shares, "even")
            self.warnings.append(warning("even-split-does-not-fit", even=even, where=where, smaller=shares))
            return
        self.largest, self.best_at_largest = largest, best
        self.is_own = divided.split == self.request.split
        self.series = None if self.is_own else divided

    def _best_beside(self, equal: Shares) -> Series | None:
        """The best split of these equal shares' global batch, measured; None if it is unknown or does not fit."""
        best = self.best_of(equal.global_batch)
        if best is None or best == equal:
            return None
        series = self._series(best, "best at largest even")
        try:
            self.beside(series)
        except OutOfMemory as error:
            self.watch(Doing(f"{error.message}: going on without it"))
            return None
        return series

    def _in_pieces(self, even: Shares, share: int) -> Series | None:
        """The even split in the fewest micro-batches that fit, warmed up; None if it can't be done in micro-batches."""
        fewest = -(-max(even.batches) // share)
        for count in range(fewest, fewest + _PIECES_TRIED):
            try:
                return self._warm(even.in_pieces(count))
            except OutOfMemory:
                continue
            except BadInput as error:  # a model that can't be trained in micro-batches
                self.watch(Doing(error.message))
                return None
        return None

    def _warm(self, split: Shares) -> Series:
        self.watch(Doing(f"warming up the even split {split}, to compare with"))
        series = self._series(split, "even")
        self.party.ask(series.warm_up)
        return series

    def _series(self, split: Shares, name: str) -> Series:
        watch = self.watch if name == "even" else None
        return Series(split, name=name, devices=self.request.devices, watch=watch, pipeline=self.own.pipeline)
