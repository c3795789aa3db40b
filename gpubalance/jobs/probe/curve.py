"""The curve of a device up to its limit, whether it keeps its speed, and what a step does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from gpubalance.errors import (
    DeadlinePassed,
    EnvironmentFault,
    OutOfMemory,
    PartialResult,
)
from gpubalance.jobs.events import RecordDone
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.probe.attempts import Attempts
from gpubalance.numbers.stats import median
from gpubalance.numbers.units import format_seconds
from gpubalance.planning.curve import (
    knee_middles,
    knee_sizes,
    octaves,
    off_line,
    sensible_of,
    sensible_size,
)
from gpubalance.planning.model import fit_line, slower_batches
from gpubalance.planning.search import Limit
from gpubalance.results.common import Warning_
from gpubalance.results.probe import CurvePoint, times_of
from gpubalance.results.timing import Timing
from gpubalance.results.warnings import warning
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.record import Record, Seconds
from gpubalance.workers.messages import CountFlops, Flops
from gpubalance.workers.worker import Worker

# Just under the limit cuDNN may have too little memory left for its fastest algorithms.
_BELOW_THE_LIMIT = 16
_FEWEST = 3  # points, of which one is in the middle
# The part by which a batch's step time must change for the device to have changed its speed, beyond
# the uncertainty of both measurements.
_MOVED = 0.03
# A step goes at the host's pace, which changes by itself, if twice as many samples take at most so
# many times as long. On an H200 a step of 8 samples took 0.81 of the time a minute later, one of
# 136 took 0.99.
_AT_HOST_PACE = 1.1
# An update takes the same time at every batch. It is measured at the largest batch whose steps are
# no longer than this: in shorter steps a GPU may wait for its host.
_SHORT_S = 0.1
_UPDATES = 7
# Stamped steps have their own trace, whose first steps are slower
_SLOW_FIRST_STEPS = 2


def fill_curve(attempts: Attempts, limit: Limit) -> bool | None:
    """Measures what is missing: little if step times lie on a line, and returns whether they do.

    Else it measures all octaves, and more at the knee. For a split only the largest batch and the
    middle of wide gaps at the knee. None if no batch trains.
    """
    largest = limit.fits
    if not largest:
        return None
    multiple = min(attempts.probe_worker.request.batch_multiple, largest)
    sizes = octaves(min(attempts.points), largest, multiple)
    _measure_missing(attempts, limit, [largest])
    if attempts.probe_worker.request.for_split:
        return _fill_for_split(attempts, limit, largest, multiple)
    if not _off_line(attempts, largest):
        rates = _rates(attempts, largest)
        _measure_sensible(
            attempts, limit, multiple, rates + _rates_on_line(rates, sizes)
        )
    off = _off_line(attempts, largest)
    if off:
        _measure_missing(attempts, limit, sizes)
        off = _off_line(attempts, largest)
        if largest in off:
            _measure_below_limit(attempts, limit, multiple)
        _measure_missing(
            attempts, limit, knee_sizes(_rates(attempts, largest), multiple, off)
        )
        _measure_sensible(attempts, limit, multiple, _rates(attempts, largest))
    return not off


def _fill_for_split(
    attempts: Attempts, limit: Limit, largest: int, multiple: int
) -> bool:
    off = _off_line(attempts, largest)
    if largest in off:
        _measure_below_limit(attempts, limit, multiple)
    rates = _rates(attempts, largest)
    _measure_missing(attempts, limit, knee_middles(rates, multiple, off))
    return not _off_line(attempts, largest)


def _measure_below_limit(attempts: Attempts, limit: Limit, multiple: int) -> None:
    if limit.fits and limit.fails:
        below = limit.fits - max(1, limit.fits // _BELOW_THE_LIMIT)
        _measure_missing(attempts, limit, [below // multiple * multiple])


def _off_line(attempts: Attempts, largest: int) -> set[int]:
    """The batches up to the largest whose step times are off a line; all of fewer than four."""
    times = []
    for point in attempts.points_up_to(largest):
        times.append((point.batch, point.step_time_s.median, point.half_width))
    return off_line(times)


def _rates(attempts: Attempts, largest: int) -> list[tuple[int, float]]:
    """The throughput of each batch up to the largest."""
    points = attempts.points_up_to(largest)
    return [(point.batch, point.throughput.median) for point in points]


def _rates_on_line(
    rates: Sequence[tuple[int, float]], sizes: Sequence[int]
) -> list[tuple[int, float]]:
    """The throughput of the missing sizes by the line through the others."""
    line = fit_line([(batch, batch / rate) for batch, rate in rates])
    measured = {batch for batch, _ in rates}
    missing = [size for size in sizes if size not in measured]
    return [(size, size / line.step_time_s(size)) for size in missing]


def _measure_sensible(
    attempts: Attempts, limit: Limit, multiple: int, rates: Sequence[tuple[int, float]]
) -> None:
    """Measures where throughput is near its best by these rates."""
    size = sensible_size(rates, multiple) or sensible_of(rates)[0]
    _measure_missing(attempts, limit, [size])


def _measure_missing(attempts: Attempts, limit: Limit, sizes: Sequence[int]) -> None:
    """Measures those of the sizes that are missing."""
    wanted = {size for size in sizes if size > 0}
    missing = sorted(wanted - set(attempts.points))
    fragments_memory = attempts.probe_worker.fragments_memory
    for size in missing:
        is_near_limit = (
            fragments_memory and limit.fails is not None and 2 * size > limit.fails
        )
        attempt = attempts.try_batch(
            size,
            "for the curve",
            within=attempts.precision(size, limit.fits or 0),
            fresh=is_near_limit,
            last=not is_near_limit or size == missing[-1],
        )
        if not attempt.trains:
            attempts.skipped.append(size)


def measure_slower_again(attempts: Attempts) -> None:
    """Measures each batch once more that took longer than a larger one; that time then counts."""
    for batch, larger in slower_batches(times_of(attempts.points.values())):
        if attempts.points[batch].measured_again:
            continue
        attempts.probe_worker.report(
            f"batch {batch} took longer than batch {larger}: measuring it again"
        )
        measure_once_more(attempts, batch, f"{batch} slower")


def measure_once_more(attempts: Attempts, batch: int, key: str) -> None:
    """Measures a batch once more, under a journal key; that time then counts."""
    make = partial(measured_outside, attempts, batch, attempts.rule_again)
    point = attempts.probe_worker.get_or_make(key, CurvePoint, make)
    if point is not None:
        attempts.points[batch] = point.model_copy(update={"measured_again": True})
        attempts.probe_worker.watch(RecordDone(point, (attempts.probe_worker.device,)))


def slower_warnings(
    device: str, points: Iterable[CurvePoint], *, given: bool = False
) -> Iterator[Warning_]:
    """A warning for each batch that takes longer than a larger one, measured or as `given`."""
    times = times_of(points, given=given)
    seconds = {batch: time_s for batch, time_s, _ in times}
    row = "slower-than-larger/given" if given else "slower-than-larger"
    for batch, larger in slower_batches(times):
        yield warning(
            row,
            device=device,
            batch=batch,
            time=format_seconds(seconds[batch]),
            larger=larger,
            larger_time=format_seconds(seconds[larger]),
        )


class Drift(Record):
    """Whether the device changed its speed before the end of its probe."""

    changed: bool


def keeps_speed(attempts: Attempts) -> bool:
    """Whether the device still takes what it took at first.

    Measures the first and the middle one of the points again at which the device sets the pace.
    """
    points = at_device_pace(_points_of_use(attempts))
    if len(points) < _FEWEST:
        return True
    first = points[0]
    middle = points[len(points) // 2]

    def measured() -> Drift:
        return Drift(
            changed=_has_changed(attempts, first) or _has_changed(attempts, middle)
        )

    drift = attempts.probe_worker.get_or_make("drift", Drift, measured)
    return drift is None or not drift.changed


def _points_of_use(attempts: Attempts) -> list[CurvePoint]:
    """All points; for a split only those with at least half of the best throughput.

    No split has much smaller batches, whose time is as much the host's.
    """
    points = list(attempts.points.values())
    if not attempts.probe_worker.request.for_split:
        return points
    half = max((point.throughput.median for point in points), default=0.0) / 2
    return [point for point in points if point.throughput.median >= half]


def at_device_pace(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Those whose steps take as long as the device needs, not as long as the host."""
    at_own_pace = []
    for point in points:
        if not any(_is_no_longer(other, point) for other in points):
            at_own_pace.append(point)
    return at_own_pace


def _is_no_longer(other: CurvePoint, point: CurvePoint) -> bool:
    """Whether a step of at least twice as many samples takes hardly longer than the point's."""
    times = other.step_time_s.median / point.step_time_s.median
    return other.batch >= 2 * point.batch and times <= _AT_HOST_PACE


def _has_changed(attempts: Attempts, before: CurvePoint) -> bool:
    """Whether a step certainly takes another time now than before.

    A quick check comes first, then a short one if there may be a change, then one as long as a
    point's to confirm it.
    """
    rule = attempts.rule
    factor = 1.0
    for looked in (rule.quick_check, rule.short_check, attempts.rule_again):
        now = measured_outside(attempts, before.batch, looked)
        if now is None:
            return False
        factor = now.step_time_s.median / before.step_time_s.median
        half_width = factor * now.step_time_s.relative_half_width
        minimum = _MOVED + half_width + before.step_time_s.relative_half_width
        if looked == rule.quick_check:
            minimum = _MOVED - half_width
        if abs(factor - 1) <= minimum:
            return False
    attempts.probe_worker.report(
        f"batch {before.batch} now takes {factor:.2f} times as long as at first: "
        "measuring again"
    )
    return True


def measured_outside(
    attempts: Attempts, batch: int, rule: StoppingRule
) -> CurvePoint | None:
    """A point outside the search for the limit; None if the worker is lost."""
    try:
        attempts.probe_worker.ensure_worker(last=True)
        return attempts.measured(batch, rule)
    except (PartialResult, DeadlinePassed, OutOfMemory) as error:
        attempts.probe_worker.lose(error)
        return None


def measure_all_again(attempts: Attempts) -> None:
    """Measures all batches of use once more, on a device as hot as when the change was found."""
    for batch in sorted(
        (point.batch for point in _points_of_use(attempts)), reverse=True
    ):
        _measure_again(attempts, batch)


def _measure_again(attempts: Attempts, batch: int) -> None:
    measure_once_more(attempts, batch, f"{batch} once more")
    point = attempts.points[batch]
    attempts.points[batch] = point.model_copy(update={"steady": False})


class Work(Record):
    """Floating-point operations of a step for a sample, seconds of an update; None if unknown."""

    step_flops: float | None
    update_s: Seconds | None = None


def work_of_step(attempts: Attempts) -> Work | None:
    """The work as the living worker gives it, or as it was kept before; None without either."""
    return attempts.probe_worker.get_or_make("work", Work, partial(_measured, attempts))


def _measured(attempts: Attempts) -> Work | None:
    probe_worker = attempts.probe_worker
    if not probe_worker.worker_group.alive or not attempts.points:
        return None
    short = []
    for batch, point in attempts.points.items():
        if point.step_time_s.median <= _SHORT_S:
            short.append(batch)
    batch = max(short, default=min(attempts.points))
    try:
        with probe_worker.worker() as worker:
            flops = worker.ask(CountFlops(), Flops)
            update_s = _measure_update(worker, batch)
        return Work(step_flops=flops.step, update_s=update_s)
    except (PartialResult, DeadlinePassed, OutOfMemory, EnvironmentFault):
        probe_worker.worker_group.drop()
        return None


def _measure_update(worker: Worker, batch: int) -> float:
    """The median seconds of a weight update. Raises what `Worker.measure` does."""
    count = _SLOW_FIRST_STEPS + _UPDATES
    updates_s = []
    for reply in worker.measure(BatchSplit((batch,)), at_least=count, stamped=True):
        if isinstance(reply, Timing) and reply.counts:
            updates_s.append(sum(reply.update_s or ()))
    return median(updates_s[_SLOW_FIRST_STEPS:])
