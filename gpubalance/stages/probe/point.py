"""One batch size, measured on one device alone."""

from __future__ import annotations

import time

from gpubalance.results.probe import CurvePoint
from gpubalance.stages.series import Series
from gpubalance.stages.warnings import PRECISE_ENOUGH
from gpubalance.stats import has_trend
from gpubalance.workers.worker import Worker

_SAMPLES = 12  # in a measurement of the length that is asked for
_LEAST_SAMPLES = 3
_LONGEST = 4  # times that length, while the result is not precise


def measure_point(
    worker: Worker, batch: int, *, duration_s: float, until_s: float = float("inf")
) -> tuple[CurvePoint, float]:
    """The point, and the seconds within its measured steps.

    A step time with a trend is measured once more, and is never called steady. No window begins after `until_s` on
    the monotonic clock, but that a point needs one. Raises what `Worker.measure` does.
    """
    series = Series((batch,), sample_s=duration_s / _SAMPLES)
    series.settle(worker)
    _windows(series, worker, duration_s, until_s)
    spent_s = _seconds(series)
    trend = has_trend(series.step_times_s)
    again = trend and time.monotonic() < until_s
    if again:
        series.samples.clear()
        _windows(series, worker, duration_s, until_s)
        spent_s += _seconds(series)
    return _point(series, steady=not trend, again=again), spent_s


def _windows(series: Series, worker: Worker, duration_s: float, until_s: float) -> None:
    end = time.monotonic() + _LONGEST * duration_s
    series.measure(worker, duration_s, at_least=_LEAST_SAMPLES)
    while series.precision > PRECISE_ENOUGH and time.monotonic() < min(end, until_s):
        series.measure(worker, duration_s / 2)


def _seconds(series: Series) -> float:
    return sum(sample.seconds for sample in series.samples)


def _point(series: Series, *, steady: bool, again: bool) -> CurvePoint:
    return CurvePoint(
        batch=series.batches[0],
        step_time_s=series.step_time,
        throughput=series.throughput,
        memory_peak_bytes=series.memory_peak_bytes[0],
        precise=series.precision <= PRECISE_ENOUGH,
        steady=steady,
        measured_again=again,
        late_part=series.late_part,
    )
