"""Checks whether a device kept its speed while it was measured: a card that gets hot lowers its clocks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from gpubalance.errors import DeadlinePassed, OutOfMemory, PartialResult
from gpubalance.jobs.events import PointDone
from gpubalance.jobs.measure.length import Length
from gpubalance.jobs.probe.attempt import Drift, HotPoint
from gpubalance.jobs.probe.bench import Bench
from gpubalance.results.common import StepTime
from gpubalance.results.probe import CurvePoint

# The part by which a batch's step time must change in the same worker, beyond the uncertainty of both measurements.
_MOVED = 0.03
_LEAST_POINTS = 3


class Drifting:
    """Checks whether the living worker still measures what it measured at first."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._known = {drift.phase: drift for drift in bench.journal.of(bench.device.uuid, Drift)}
        self._after_s = 0.0
        self.found = False

    def look(self, phase: str, points: Sequence[CurvePoint]) -> None:
        """Measures the first and the middle one of the points again, and notes a change."""
        drift = self._known.get(phase) or self._drift(phase, points)
        if drift is not None and abs(drift.factor - 1) > _MOVED:
            self.found = True
            self._after_s = drift.after_s

    def _drift(self, phase: str, points: Sequence[CurvePoint]) -> Drift | None:
        if len(points) < _LEAST_POINTS or not self._bench.party.alive:
            return None
        factor = 1.0
        for before in (points[0], points[len(points) // 2]):
            factor = self._factor(before)
            if abs(factor - 1) > _MOVED:
                break
        drift = Drift(phase=phase, factor=factor, after_s=time.monotonic() - self._bench.began_s)
        self._bench.journal.add(self._bench.device.uuid, drift)
        return drift

    def _factor(self, before: CurvePoint) -> float:
        """The step time now over that before, 1 if no change is certain.

        Takes a glance first, then a short look if there may be a change, then one as long as a point's to confirm it.
        """
        factor = 1.0
        length = self._bench.length
        for looked, found in ((length.glance, _may_differ), (length.look, _differ), (length, _differ)):
            now = self._measured(before.batch, looked)
            if now is None or not found(before.step_time_s, now.step_time_s):
                return 1.0
            factor = now.step_time_s.median / before.step_time_s.median
        self._bench.tell(f"batch {before.batch} now takes {factor:.2f} times as long as at first: measuring once more")
        return factor

    def _measured(self, batch: int, length: Length) -> CurvePoint | None:
        try:
            self._bench.ready(last=True)
            return self._bench.measured(batch, length)
        except (PartialResult, DeadlinePassed, OutOfMemory) as error:
            self._bench.lose(error)
            return None

    def measure_again(self, batches: list[int]) -> Iterator[CurvePoint]:
        """Measures every batch once more, on a device as hot as when the change was found."""
        known = {hot.point.batch: hot.point for hot in self._bench.journal.of(self._bench.device.uuid, HotPoint)}
        for batch in batches:
            if batch not in known:
                self._heat_up(batches[len(batches) // 2])
            point = known.get(batch) or self._measured(batch, self._bench.length)
            if point is not None:
                if batch not in known:
                    self._bench.journal.add(self._bench.device.uuid, HotPoint(point=point))
                self._bench.watch(PointDone(self._bench.device, point))
                yield point

    def _heat_up(self, batch: int) -> None:
        """Trains until the worker has run for as long as the one in which the change was found."""
        while not self._bench.began_s or time.monotonic() - self._bench.began_s < self._after_s:
            self._bench.tell("warming the device up, as its speed changes with time")
            left = self._after_s - (time.monotonic() - self._bench.began_s if self._bench.began_s else 0.0)
            if self._measured(batch, self._bench.length.lasting(max(1.0, left))) is None:
                return


def _differ(before: StepTime, now: StepTime) -> bool:
    """Whether the medians are further apart than their intervals and the tolerance together."""
    return abs(now.median - before.median) - _open_s(before) - _open_s(now) > _MOVED * before.median


def _may_differ(before: StepTime, now: StepTime) -> bool:
    """Whether the median may have moved by more than the tolerance."""
    return abs(now.median - before.median) + _open_s(now) > _MOVED * before.median


def _open_s(step: StepTime) -> float:
    """Half the 95 % interval in seconds, 0 if unknown."""
    return (step.ci95[1] - step.ci95[0]) / 2 if step.ci95 else 0.0
