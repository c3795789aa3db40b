"""Measures one device alone: its curve over batch sizes, its batch limit, and whether it kept its speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from gpubalance.errors import DeadlinePassed, EnvironmentFault, GpubalanceError, OutOfMemory, PartialResult
from gpubalance.jobs.measure.warnings import PRECISE_ENOUGH
from gpubalance.jobs.probe.attempt import Work
from gpubalance.jobs.probe.bench import Bench
from gpubalance.jobs.probe.drift import Drifting
from gpubalance.jobs.probe.point import measure_update
from gpubalance.planning.curve import knee_sizes, octaves, off_line, sensible_of, sensible_size, wanted_precision
from gpubalance.planning.memory import predict_limit
from gpubalance.planning.model import fit_line
from gpubalance.planning.search import Limit, Trial, find_limit
from gpubalance.results.common import Warning_
from gpubalance.workers.worker import Worker

# With fewer batches a line through their memory may only show cuDNN's workspaces.
_POINTS_FOR_A_LINE = 3
# If memory sets no limit the curve ends on its plateau, or here.
_LARGEST_UNASKED = 1024
_LARGEST = 1 << 20
_PLATEAU = 0.03
# Just under the limit cuDNN may have too little memory left for its fastest algorithms.
_BELOW_THE_LIMIT = 16
# An update takes the same time at every batch. It is measured at the largest batch whose steps are no longer than this:
# in shorter steps a GPU may wait for its host.
_SHORT_S = 0.1


class Alone:
    """A device's probe and what it has found so far; `number` is its place among the probe's devices."""

    def __init__(self, number: int, bench: Bench) -> None:
        self.number = number
        self.bench = bench
        self.points = bench.points
        self.error: GpubalanceError | None = None
        self.began = False
        self.ended = False
        self.elapsed_s = 0.0
        self.trace_warning: Warning_ | None = None
        self.limit: Limit | None = None
        self.max_batch = bench.request.max_batch or 0
        self.work: Work | None = None
        self.steady = True
        self.skipped: list[int] = []
        self.on_line: bool | None = None
        self._failed: int | None = None

    @property
    def errors(self) -> list[GpubalanceError]:
        """The error that ended its probe, if any, and the deaths of its workers."""
        deaths = self.bench.deaths
        return [self.error, *deaths] if self.error and self.error not in deaths else [*deaths]

    def probe(self) -> None:
        """Measures the device. Raises what `Bench.try_batch` does; what was found before an error stays."""
        drifting = Drifting(self.bench)
        self._explore()
        self.work = self._work()
        if self.bench.in_pieces:  # else its worker goes on
            drifting.look("explore", list(self.bench.here))
        self.limit = self._find_limit()
        if self.limit.fits is None and self.bench.fault is not None:
            raise self.bench.fault
        self._fill()
        self.work = self.work or self._work()
        if not drifting.found:
            drifting.look("fill", list(self.points.values()))
        if drifting.found:
            self._measure_again(drifting)

    def _explore(self) -> None:
        """Measures octaves, every second one once memory predicts a limit, up to half of it: all in one worker."""
        multiple, most = self.bench.request.batch_multiple, self.bench.request.max_batch
        size = multiple if most is None else min(multiple, most)
        while size <= (most or _LARGEST) and not self._enough(size):
            attempt = self.bench.try_batch(size, "for the curve", within=wanted_precision(size, self._at_least(most)))
            if attempt.point is None:
                self._failed = size
                break
            size *= 2 if self._predicted() is None else 4
        if not self.max_batch:
            self.max_batch = _LARGEST if self._predicted() or self._failed else max(self.points, default=1)

    def _at_least(self, most: int | None) -> float:
        """The least that the largest batch will be; infinite for known memory, explored only in part."""
        known = self.bench.facts is None or self.bench.memory_bytes is not None
        return most or (math.inf if known else 0.0)

    def _predicted(self) -> int | None:
        memory = self.bench.memory_bytes
        return predict_limit(self._peaks(), memory) if memory and len(self._peaks()) >= _POINTS_FOR_A_LINE else None

    def _enough(self, size: int) -> bool:
        predicted = self._predicted()
        if predicted is not None:
            return 2 * size > predicted
        if self.bench.request.max_batch is not None or len(self.points) < _POINTS_FOR_A_LINE:
            return False
        return size > _LARGEST_UNASKED or (self.bench.memory_bytes is None and self._on_plateau())

    def _on_plateau(self) -> bool:
        rates = [self.points[batch].throughput.median for batch in sorted(self.points)]
        return rates[-1] < (1 + _PLATEAU) * rates[-2]

    def _peaks(self) -> list[tuple[int, int]]:
        return [(b, p.memory_peak_bytes) for b, p in sorted(self.points.items()) if p.memory_peak_bytes is not None]

    def _find_limit(self) -> Limit:
        request = self.bench.request
        fitted = self._peaks() or [(batch, 0) for batch in self.points]
        return find_limit(
            self._try,
            fitted,
            memory_bytes=self.bench.memory_bytes if self._peaks() or not self.points else None,
            max_batch=self.max_batch,
            multiple=request.batch_multiple,
            failed=self._failed,
        )

    def _try(self, batch: int, reason: str) -> Trial:
        attempt = self.bench.try_batch(batch, reason, within=PRECISE_ENOUGH, trial=True)
        return Trial(batch, attempt.point is not None, attempt.trial.memory_peak_bytes)

    def _fill(self) -> None:
        """Measures what is missing: little if step times lie on a line, else all octaves and more at the knee."""
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
            below = (largest - max(1, largest // _BELOW_THE_LIMIT)) // multiple * multiple
            self._measure([below] if self._at_the_limit() and largest in off else [])
            self._measure(knee_sizes(self._rates(largest), multiple, off))
            self._measure_sensible(largest, multiple)
        self.on_line = not off

    def _off_line(self, largest: int) -> set[int]:
        points = [p for p in self.points.values() if p.batch <= largest]
        return off_line([(p.batch, p.step_time_s.median, p.half_width) for p in points])

    def _measure_sensible(self, largest: int, multiple: int, on_line: Sequence[int] = ()) -> None:
        """Measures where throughput is near its best, by the points and, for the sizes `on_line`, by their line."""
        rates = self._rates(largest)
        if on_line:
            line = fit_line([(batch, batch / rate) for batch, rate in rates])
            rates += [(size, size / line.step_time_s(size)) for size in on_line if size not in self.points]
        self._measure([sensible_size(rates, multiple) or sensible_of(rates)[0]])

    @property
    def largest(self) -> int:
        """The largest batch known to train; 0 if none does."""
        return max(self.points, default=0) if self.limit is None else self.limit.fits or 0

    def _rates(self, largest: int) -> list[tuple[int, float]]:
        return [(batch, point.throughput.median) for batch, point in self.points.items() if batch <= largest]

    def _at_the_limit(self) -> bool:
        return self.limit is not None and self.limit.fails is not None

    def _near_the_limit(self, size: int) -> bool:
        return self.limit is not None and self.limit.fails is not None and 2 * size > self.limit.fails

    def _measure(self, sizes: list[int]) -> None:
        missing = sorted({s for s in sizes if s > 0} - set(self.points))
        for size in missing:
            near = self.bench.in_pieces and self._near_the_limit(size)
            attempt = self.bench.try_batch(
                size,
                "for the curve",
                within=wanted_precision(size, self.largest),
                fresh=near,
                last=not near or size == missing[-1],
            )
            if attempt.point is None:
                self.skipped.append(size)

    def _work(self) -> Work | None:
        """What is the same at every batch, measured by the living worker or kept before; None without either."""
        bench = self.bench
        known = bench.journal.of(bench.device.uuid, Work)
        if known:
            return known[0]
        if not bench.party.alive or not bench.here:
            return None
        short = [point.batch for point in bench.here if point.step_time_s.median <= _SHORT_S]
        update = partial(measure_update, batch=max(short, default=min(point.batch for point in bench.here)))
        try:
            work = Work(step_flops=bench.party.ask(Worker.step_flops), update_s=bench.party.ask(update))
        except (PartialResult, DeadlinePassed, OutOfMemory, EnvironmentFault):
            bench.drop()
            return None
        bench.journal.add(bench.device.uuid, work)
        return work

    def _measure_again(self, drifting: Drifting) -> None:
        self.steady = False
        for batch, point in self.points.items():
            self.points[batch] = point.model_copy(update={"steady": False})
        for point in drifting.measure_again(sorted(self.points)):
            self.points[point.batch] = point.model_copy(update={"steady": False, "measured_again": True})
