"""The curve of a device up to its limit: measures the batches at which it is not known yet."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.jobs.probe.attempts import Attempts
from gpubalance.planning.curve import (
    knee_middles,
    knee_sizes,
    octaves,
    off_line,
    sensible_of,
    sensible_size,
)
from gpubalance.planning.model import fit_line
from gpubalance.planning.search import Limit

# Just under the limit cuDNN may have too little memory left for its fastest algorithms.
_BELOW_THE_LIMIT = 16


def fill_curve(attempts: Attempts, limit: Limit) -> bool | None:
    """Measures what is missing: little if step times lie on a line, and returns whether they do.

    Else it measures all octaves, and more at the knee. For a split only the largest batch and the
    middle of wide gaps at the knee. None if no batch trains.
    """
    largest = limit.fits
    if not largest:
        return None
    multiple = min(attempts.bench.request.batch_multiple, largest)
    sizes = octaves(min(attempts.points), largest, multiple)
    _measure_missing(attempts, limit, [largest])
    if attempts.bench.request.for_split:
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
    fragments = attempts.bench.fragments
    for size in missing:
        is_near_limit = fragments and limit.fails is not None and 2 * size > limit.fails
        attempt = attempts.try_batch(
            size,
            "for the curve",
            within=attempts.precision(size, limit.fits or 0),
            fresh=is_near_limit,
            last=not is_near_limit or size == missing[-1],
        )
        if not attempt.trains:
            attempts.skipped.append(size)
