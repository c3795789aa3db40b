"""One batch size, measured on one device alone."""

from __future__ import annotations

import time
from contextlib import nullcontext

from gpubalance.devices.telemetry import Sampler
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.warnings import PRECISE_ENOUGH
from gpubalance.numbers.steady import is_steady
from gpubalance.results.probe import CurvePoint
from gpubalance.results.telemetry import Telemetry, passing
from gpubalance.settings.shares import Shares
from gpubalance.workers.worker import Worker

_TIMINGS = 12  # in a measurement of the length that is asked for
_LEAST_TIMINGS = 3
_LONGEST = 4  # times that length, while the result is not precise


def measure_point(
    worker: Worker,
    batch: int,
    *,
    duration_s: float,
    until_s: float = float("inf"),
    gpu: str | None = None,
    first: bool = True,
) -> tuple[CurvePoint, float]:
    """The point, and the seconds within its measured steps.

    A point is measured once more, and is never called steady, where its step time rose, fell or changed its level, or
    NVML says that heat throttled the GPU. After `until_s` on the monotonic clock no window begins but the first. `gpu`
    is the UUID of a GPU to read meanwhile; `first` is for the model's first measurement. Raises what `Worker.measure`
    does.
    """
    series = Series(Shares((batch,)), timing_s=duration_s / _TIMINGS)
    series.settle(worker, first=first)
    telemetry = _windows(series, worker, duration_s, until_s, gpu)
    spent_s = _seconds(series)
    steady = is_steady(series.step_times_s) and not passing(_throttled(telemetry))
    again = not steady and time.monotonic() < until_s
    if again:
        series.timings.clear()
        telemetry = _windows(series, worker, duration_s, until_s, gpu)
        spent_s += _seconds(series)
    return _point(series, telemetry, steady=steady, again=again), spent_s


def _windows(series: Series, worker: Worker, duration_s: float, until_s: float, gpu: str | None) -> Telemetry | None:
    end = time.monotonic() + _LONGEST * duration_s
    with nullcontext() if gpu is None else Sampler(gpu) as sampler:
        series.measure(worker, duration_s, at_least=_LEAST_TIMINGS)
        while series.precision > PRECISE_ENOUGH and time.monotonic() < min(end, until_s):
            series.measure(worker, duration_s / 2)
    return None if sampler is None else sampler.telemetry


def _throttled(telemetry: Telemetry | None) -> tuple[str, ...]:
    return (telemetry.throttle_reasons or ()) if telemetry else ()


def _seconds(series: Series) -> float:
    return sum(timing.seconds for timing in series.timings)


def _point(series: Series, telemetry: Telemetry | None, *, steady: bool, again: bool) -> CurvePoint:
    return CurvePoint(
        batch=series.split.global_batch,
        step_time_s=series.step_time(series.began_s),
        throughput=series.throughput,
        memory_peak_bytes=series.memory_peak_bytes[0],
        precise=series.precision <= PRECISE_ENOUGH,
        steady=steady,
        measured_again=again,
        late_part=series.late_part,
        telemetry=telemetry,
    )
