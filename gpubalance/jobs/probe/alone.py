"""Measures one device alone: its curve over batch sizes, its batch limit, and whether it kept its
speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from gpubalance.errors import (
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    OutOfMemory,
    PartialResult,
)
from gpubalance.jobs.events import PointDone
from gpubalance.jobs.measure.stopping import PRECISE_ENOUGH, StoppingRule
from gpubalance.jobs.probe.bench import Bench, measure_update
from gpubalance.planning.curve import (
    knee_sizes,
    octaves,
    off_line,
    sensible_of,
    sensible_size,
    wanted_precision,
)
from gpubalance.planning.memory import predict_limit
from gpubalance.planning.model import fit_line
from gpubalance.planning.search import Limit, TriedBatch, find_limit
from gpubalance.results.common import Warning_
from gpubalance.results.probe import CurvePoint
from gpubalance.settings.record import Record, Seconds
from gpubalance.workers.messages import CountFlops, Flops

# With fewer batches a line through their memory may only show cuDNN's workspaces.
_POINTS_FOR_A_LINE = 3
# If memory sets no limit the curve ends on its plateau, or here.
_LARGEST_UNASKED = 1024
_LARGEST = 1 << 20
_PLATEAU = 0.03
# Just under the limit cuDNN may have too little memory left for its fastest algorithms.
_BELOW_THE_LIMIT = 16
# An update takes the same time at every batch. It is measured at the largest batch whose steps are
# no longer than this: in shorter steps a GPU may wait for its host.
_SHORT_S = 0.1
# The part by which a batch's step time must change for the device to have changed its speed, beyond
# the uncertainty of both measurements.
_MOVED = 0.03


class Work(Record):
    """Floating-point operations of a step for one sample, and the seconds of an update; None if
    unknown.
    """

    step_flops: float | None
    update_s: Seconds | None = None


class Drift(Record):
    """Whether the device changed its speed before the end of its probe."""

    changed: bool


@dataclass
class Alone(Bench):
    """A device's probe and what it has found so far; `number` is its place among the probe's
    devices.
    """

    number: int = 0
    error: GpubalanceError | None = None
    began: bool = False
    ended: bool = False
    elapsed_s: float = 0.0
    limit: Limit | None = None
    work: Work | None = None
    steady: bool = True
    on_line: bool | None = None
    skipped: list[int] = field(default_factory=list)
    trace_warnings: list[Warning_] = field(default_factory=list)
    _failed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.max_batch = self.request.max_batch or 0

    @property
    def errors(self) -> list[GpubalanceError]:
        """The error that ended its probe, if any, and the deaths of its workers."""
        return (
            [self.error, *self.deaths]
            if self.error and self.error not in self.deaths
            else self.deaths
        )

    @property
    def largest(self) -> int:
        """The largest batch known to train; 0 if none does."""
        return max(self.points, default=0) if self.limit is None else self.limit.fits or 0

    def probe(self) -> None:
        """Measures the device. Raises what `try_batch` does; what was found before an
        error stays.
        """
        self._explore()
        self.work = self._work()
        self.limit = self._find_limit()
        if self.limit.fits is None and self.fault is not None:
            raise self.fault
        self._fill()
        self.work = self.work or self._work()
        self.steady = self._keeps_speed()
        for batch in [] if self.steady else sorted(self.points, reverse=True):
            self._measure_again(batch)

    def _explore(self) -> None:
        """Measures octaves, every second one once memory predicts a limit, up to half of it: all in
        one worker.
        """
        multiple, most = self.request.batch_multiple, self.request.max_batch
        size = multiple if most is None else min(multiple, most)
        while size <= (most or _LARGEST) and not self._enough(size):
            attempt = self.try_batch(
                size, "for the curve", within=wanted_precision(size, self._at_least)
            )
            if attempt.point is None:
                self._failed = size
                break
            size *= 2 if self._predicted() is None else 4
        if not self.max_batch:
            self.max_batch = (
                _LARGEST if self._predicted() or self._failed else max(self.points, default=1)
            )

    @property
    def _at_least(self) -> float:
        """The least that the largest batch will be; infinite for known memory, explored only in
        part.
        """
        known = self.facts is None or self.memory_bytes is not None
        return self.request.max_batch or (math.inf if known else 0.0)

    def _predicted(self) -> int | None:
        memory, peaks = self.memory_bytes, self._peaks()
        return predict_limit(peaks, memory) if memory and len(peaks) >= _POINTS_FOR_A_LINE else None

    def _enough(self, size: int) -> bool:
        predicted = self._predicted()
        if predicted is not None:
            return 2 * size > predicted
        if self.request.max_batch is not None or len(self.points) < _POINTS_FOR_A_LINE:
            return False
        return size > _LARGEST_UNASKED or (self.memory_bytes is None and self._on_plateau())

    def _on_plateau(self) -> bool:
        (_, before), (_, last) = sorted(self._rates(_LARGEST))[-2:]
        return last < (1 + _PLATEAU) * before

    def _peaks(self) -> list[tuple[int, int]]:
        return [
            (b, p.memory_peak_bytes)
            for b, p in sorted(self.points.items())
            if p.memory_peak_bytes is not None
        ]

    def _find_limit(self) -> Limit:
        peaks = self._peaks()
        return find_limit(
            self._trial,
            peaks or [(batch, 0) for batch in self.points],
            memory_bytes=self.memory_bytes if peaks or not self.points else None,
            max_batch=self.max_batch,
            multiple=self.request.batch_multiple,
            failed=self._failed,
        )

    def _trial(self, batch: int, reason: str) -> TriedBatch:
        attempt = self.try_batch(batch, reason, within=PRECISE_ENOUGH, trial=True)
        return TriedBatch(batch, attempt.point is not None, attempt.trial.memory_peak_bytes)

    def _fill(self) -> None:
        """Measures what is missing: little if step times lie on a line, else all octaves and more
        at the knee.
        """
        largest = self.largest
        if not largest:
            return
        multiple = min(self.request.batch_multiple, largest)
        sizes = octaves(min(self.points), largest, multiple)
        self._measure([largest])
        if not self._off_line(largest):
            self._measure_sensible(largest, multiple, sizes)
        off = self._off_line(largest)
        if off:
            self._measure(sizes)
            off = self._off_line(largest)
            below = (largest - max(1, largest // _BELOW_THE_LIMIT)) // multiple * multiple
            self._measure([below] if self._fails and largest in off else [])
            self._measure(knee_sizes(self._rates(largest), multiple, off))
            self._measure_sensible(largest, multiple)
        self.on_line = not off

    def _off_line(self, largest: int) -> set[int]:
        points = [p for p in self.points.values() if p.batch <= largest]
        return off_line([(p.batch, p.step_time_s.median, p.half_width) for p in points])

    def _measure_sensible(self, largest: int, multiple: int, on_line: Sequence[int] = ()) -> None:
        """Measures where throughput is near its best, by the points and, for the sizes `on_line`,
        by their line.
        """
        rates = self._rates(largest)
        if on_line:
            line = fit_line([(batch, batch / rate) for batch, rate in rates])
            rates += [
                (size, size / line.step_time_s(size)) for size in on_line if size not in self.points
            ]
        self._measure([sensible_size(rates, multiple) or sensible_of(rates)[0]])

    def _rates(self, largest: int) -> list[tuple[int, float]]:
        return [
            (batch, point.throughput.median)
            for batch, point in self.points.items()
            if batch <= largest
        ]

    @property
    def _fails(self) -> int | None:
        return self.limit.fails if self.limit else None

    def _measure(self, sizes: list[int]) -> None:
        missing = sorted({s for s in sizes if s > 0} - set(self.points))
        for size in missing:
            near = self.in_pieces and self._fails is not None and 2 * size > self._fails
            last = not near or size == missing[-1]
            within = wanted_precision(size, self.largest)
            attempt = self.try_batch(size, "for the curve", within=within, fresh=near, last=last)
            if attempt.point is None:
                self.skipped.append(size)

    def _work(self) -> Work | None:
        """What is the same at every batch, measured by the living worker or kept before; None
        without either.
        """
        return self.kept("work", Work, self._measured_work)

    def _measured_work(self) -> Work | None:
        if not self.party.alive or not self.points:
            return None
        short = [
            batch for batch, point in self.points.items() if point.step_time_s.median <= _SHORT_S
        ]
        update = partial(measure_update, batch=max(short, default=min(self.points)))
        try:
            flops = self.ask(lambda worker: worker.ask(CountFlops(), Flops))
            return Work(step_flops=flops.step, update_s=self.ask(update))
        except (PartialResult, DeadlinePassed, OutOfMemory, EnvironmentFault):
            self.party.drop()
            return None

    def _keeps_speed(self) -> bool:
        """Whether the device takes what it took at first: a card that gets hot lowers its clocks.

        Measures the first and the middle one of the points again.
        """
        points = list(self.points.values())
        if len(points) < _POINTS_FOR_A_LINE:
            return True
        two = points[0], points[len(points) // 2]
        drift = self.kept("drift", Drift, lambda: Drift(changed=any(map(self._changed, two))))
        return drift is None or not drift.changed

    def _changed(self, before: CurvePoint) -> bool:
        """Whether a step certainly takes another time now than before.

        Takes a glance first, then a short look if there may be a change, then one as long as a
        point's to confirm it.
        """
        factor, length = 1.0, self.length
        for looked in (length.glance, length.look, length):
            now = self._measured(before.batch, looked)
            if now is None:
                return False
            factor = now.step_time_s.median / before.step_time_s.median
            relative_half_width = factor * now.step_time_s.relative_half_width
            least = (
                _MOVED - relative_half_width
                if looked == length.glance
                else _MOVED + relative_half_width + before.step_time_s.relative_half_width
            )
            if abs(factor - 1) <= least:
                return False
        self.tell(
            f"batch {before.batch} now takes {factor:.2f} times as long as at first: "
            "measuring once more"
        )
        return True

    def _measured(self, batch: int, length: StoppingRule) -> CurvePoint | None:
        try:
            self.ready(last=True)
            return self.measured(batch, length)
        except (PartialResult, DeadlinePassed, OutOfMemory) as error:
            self.lose(error)
            return None

    def _measure_again(self, batch: int) -> None:
        """Measures a batch once more, on a device as hot as when the change was found."""
        point = self.kept(
            f"{batch} once more", CurvePoint, lambda: self._measured(batch, self.length)
        )
        if point is not None:
            self.watch(PointDone(self.device, point))
        now, again = point or self.points[batch], point is not None
        self.points[batch] = now.model_copy(update={"steady": False, "measured_again": again})
