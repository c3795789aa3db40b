"""Measures one device alone: its curve, its batch limit, and whether it kept its speed."""

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
from gpubalance.settings.device import Device
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
    """Floating-point operations of a step for a sample, seconds of an update; None if unknown."""

    step_flops: float | None
    update_s: Seconds | None = None


class Drift(Record):
    """Whether the device changed its speed before the end of its probe."""

    changed: bool


@dataclass
class Alone:
    """A device's probe, on its `bench`, and what it has found so far.

    `number` is its place among the probe's devices.
    """

    number: int
    bench: Bench
    error: GpubalanceError | None = None
    began: bool = False
    ended: bool = False
    elapsed_s: float = 0.0
    max_batch: int = 0  # the largest that was asked for, or that is looked for
    limit: Limit | None = None
    work: Work | None = None
    steady: bool = True
    on_line: bool | None = None
    skipped: list[int] = field(default_factory=list)
    trace_warnings: list[Warning_] = field(default_factory=list)
    _failed: int | None = None  # the batch at which exploring ended

    @property
    def device(self) -> Device:
        """The device under probe."""
        return self.bench.device

    @property
    def points(self) -> dict[int, CurvePoint]:
        """Its curve so far, by batch."""
        return self.bench.points

    @property
    def errors(self) -> list[GpubalanceError]:
        """The error that ended its probe, if any, and the deaths of its workers."""
        deaths = self.bench.deaths
        if self.error is None or self.error in deaths:
            return deaths
        return [self.error, *deaths]

    @property
    def largest(self) -> int:
        """The largest batch known to train; 0 if none does."""
        if self.limit is None:
            return max(self.points, default=0)
        return self.limit.fits or 0

    def probe(self) -> None:
        """Measures the device. What was found before an error stays. Raises as `try_batch` does."""
        self._explore()
        self.work = self._work()
        self.limit = self._find_limit()
        if self.limit.fits is None and self.bench.fault is not None:
            raise self.bench.fault
        self._fill()
        self.work = self.work or self._work()
        self.steady = self._keeps_speed()
        if not self.steady:
            for batch in sorted(self.points, reverse=True):
                self._measure_again(batch)

    def _explore(self) -> None:
        """Measures octaves up to half of the limit that memory predicts, all in one worker.

        Once it predicts one, only every second octave is measured.
        """
        request = self.bench.request
        size = request.batch_multiple
        if request.max_batch is not None:
            size = min(size, request.max_batch)
        while size <= (request.max_batch or _LARGEST) and not self._is_enough(size):
            within = wanted_precision(size, self._at_least)
            attempt = self.bench.try_batch(size, "for the curve", within=within)
            if attempt.point is None:
                self._failed = size
                break
            size *= 2 if self._predicted() is None else 4
        if request.max_batch:
            self.max_batch = request.max_batch
        elif self._predicted() or self._failed:
            self.max_batch = _LARGEST
        else:
            self.max_batch = max(self.points, default=1)

    @property
    def _at_least(self) -> float:
        """The least that the largest batch will be; infinite for a memory that is known.

        Of that only a part is explored.
        """
        if self.bench.request.max_batch:
            return self.bench.request.max_batch
        is_known = self.bench.facts is None or self.bench.usable_bytes is not None
        return math.inf if is_known else 0.0

    def _predicted(self) -> int | None:
        """The limit by a line through memory; None if there is none."""
        usable_bytes, peaks = self.bench.usable_bytes, self._peaks()
        if not usable_bytes or len(peaks) < _POINTS_FOR_A_LINE:
            return None
        return predict_limit(peaks, usable_bytes)

    def _is_enough(self, size: int) -> bool:
        """Whether the curve is known well enough without that size."""
        predicted = self._predicted()
        if predicted is not None:
            return 2 * size > predicted
        if self.bench.request.max_batch is not None or len(self.points) < _POINTS_FOR_A_LINE:
            return False
        if size > _LARGEST_UNASKED:
            return True
        return self.bench.usable_bytes is None and self._is_on_plateau()

    def _is_on_plateau(self) -> bool:
        (_, before), (_, last) = sorted(self._rates(_LARGEST))[-2:]
        return last < (1 + _PLATEAU) * before

    def _peaks(self) -> list[tuple[int, int]]:
        """The bytes of each batch, as far as they are known, in order."""
        peaks = []
        for batch, point in sorted(self.points.items()):
            if point.memory_peak_bytes is not None:
                peaks.append((batch, point.memory_peak_bytes))
        return peaks

    def _find_limit(self) -> Limit:
        memory_bytes, ran = self.bench.usable_bytes, self._peaks()
        if self.points and not ran:
            # Without peaks memory tells nothing: it only counts which batches ran.
            memory_bytes = None
            ran = [(batch, 0) for batch in self.points]
        return find_limit(
            self._trial,
            ran,
            memory_bytes=memory_bytes,
            max_batch=self.max_batch,
            multiple=self.bench.request.batch_multiple,
            failed=self._failed,
        )

    def _trial(self, batch: int, reason: str) -> TriedBatch:
        attempt = self.bench.try_batch(batch, reason, within=PRECISE_ENOUGH, trial=True)
        return TriedBatch(batch, attempt.point is not None, attempt.trial.memory_peak_bytes)

    def _fill(self) -> None:
        """Measures what is missing: little if step times lie on a line.

        Else it measures all octaves, and more at the knee.
        """
        largest = self.largest
        if not largest:
            return
        multiple = min(self.bench.request.batch_multiple, largest)
        sizes = octaves(min(self.points), largest, multiple)
        self._measure([largest])
        if not self._off_line(largest):
            self._measure_sensible(largest, multiple, sizes)
        off = self._off_line(largest)
        if off:
            self._measure(sizes)
            off = self._off_line(largest)
            if self._fails and largest in off:
                below = largest - max(1, largest // _BELOW_THE_LIMIT)
                self._measure([below // multiple * multiple])
            self._measure(knee_sizes(self._rates(largest), multiple, off))
            self._measure_sensible(largest, multiple)
        self.on_line = not off

    def _off_line(self, largest: int) -> set[int]:
        """The batches up to the largest whose step times are off a line."""
        points = [p for p in self.points.values() if p.batch <= largest]
        return off_line([(p.batch, p.step_time_s.median, p.half_width) for p in points])

    def _measure_sensible(self, largest: int, multiple: int, on_line: Sequence[int] = ()) -> None:
        """Measures where throughput is near its best.

        The points tell, and for the sizes `on_line` the line through them.
        """
        rates = self._rates(largest)
        if on_line:
            line = fit_line([(batch, batch / rate) for batch, rate in rates])
            missing = [size for size in on_line if size not in self.points]
            rates += [(size, size / line.step_time_s(size)) for size in missing]
        self._measure([sensible_size(rates, multiple) or sensible_of(rates)[0]])

    def _rates(self, largest: int) -> list[tuple[int, float]]:
        """The throughput of each batch up to the largest."""
        points = [p for p in self.points.values() if p.batch <= largest]
        return [(p.batch, p.throughput.median) for p in points]

    @property
    def _fails(self) -> int | None:
        return self.limit.fails if self.limit else None

    def _measure(self, sizes: Sequence[int]) -> None:
        """Measures those of the sizes that are missing."""
        wanted = {size for size in sizes if size > 0}
        missing = sorted(wanted - set(self.points))
        for size in missing:
            is_near = self.bench.in_pieces and self._fails is not None and 2 * size > self._fails
            attempt = self.bench.try_batch(
                size,
                "for the curve",
                within=wanted_precision(size, self.largest),
                fresh=is_near,
                last=not is_near or size == missing[-1],
            )
            if attempt.point is None:
                self.skipped.append(size)

    def _work(self) -> Work | None:
        """What is the same at every batch, measured by the living worker or kept before.

        None without either.
        """
        return self.bench.kept("work", Work, self._measured_work)

    def _measured_work(self) -> Work | None:
        bench = self.bench
        if not bench.party.alive or not self.points:
            return None
        short = [
            batch for batch, point in self.points.items() if point.step_time_s.median <= _SHORT_S
        ]
        update = partial(measure_update, batch=max(short, default=min(self.points)))
        try:
            flops = bench.ask(lambda worker: worker.ask(CountFlops(), Flops))
            return Work(step_flops=flops.step, update_s=bench.ask(update))
        except (PartialResult, DeadlinePassed, OutOfMemory, EnvironmentFault):
            bench.party.drop()
            return None

    def _keeps_speed(self) -> bool:
        """Whether the device takes what it took at first: a card that gets hot lowers its clocks.

        Measures the first and the middle one of the points again.
        """
        points = list(self.points.values())
        if len(points) < _POINTS_FOR_A_LINE:
            return True
        first, middle = points[0], points[len(points) // 2]

        def measured() -> Drift:
            return Drift(changed=self._has_changed(first) or self._has_changed(middle))

        drift = self.bench.kept("drift", Drift, measured)
        return drift is None or not drift.changed

    def _has_changed(self, before: CurvePoint) -> bool:
        """Whether a step certainly takes another time now than before.

        Takes a glance first, then a short look if there may be a change, then one as long as a
        point's to confirm it.
        """
        rule = self.bench.rule
        factor = 1.0
        for looked in (rule.glance, rule.look, rule):
            now = self._measured(before.batch, looked)
            if now is None:
                return False
            factor = now.step_time_s.median / before.step_time_s.median
            half_width = factor * now.step_time_s.relative_half_width
            least = _MOVED + half_width + before.step_time_s.relative_half_width
            if looked == rule.glance:
                least = _MOVED - half_width
            if abs(factor - 1) <= least:
                return False
        self.bench.tell(
            f"batch {before.batch} now takes {factor:.2f} times as long as at first: "
            "measuring once more"
        )
        return True

    def _measured(self, batch: int, rule: StoppingRule) -> CurvePoint | None:
        """A point outside the search for the limit; None if the worker is lost."""
        try:
            self.bench.ready(last=True)
            return self.bench.measured(batch, rule)
        except (PartialResult, DeadlinePassed, OutOfMemory) as error:
            self.bench.lose(error)
            return None

    def _measure_again(self, batch: int) -> None:
        """Measures a batch once more, on a device as hot as when the change was found."""
        now = self.bench.kept(
            f"{batch} once more", CurvePoint, lambda: self._measured(batch, self.bench.rule)
        )
        if now is not None:
            self.bench.watch(PointDone(self.device, now))
        point = now or self.points[batch]
        changes = {"steady": False, "measured_again": now is not None}
        self.points[batch] = point.model_copy(update=changes)
