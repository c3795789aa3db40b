"""Measures one batch size on one device alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext

from gpubalance.devices.telemetry import Sampler
from gpubalance.jobs.measure.length import Length
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.timings import Timings
from gpubalance.jobs.measure.warnings import PRECISE_ENOUGH
from gpubalance.numbers.stats import median
from gpubalance.numbers.steady import is_steady
from gpubalance.results.probe import CurvePoint
from gpubalance.results.telemetry import Telemetry, passing
from gpubalance.results.timing import Timing
from gpubalance.settings.shares import Shares
from gpubalance.workers.worker import Worker

_UPDATES = 7
_UNLIKE_STEPS = 2  # stamped steps have their own trace, whose first steps are slower


def measure_point(
    worker: Worker,
    batch: int,
    *,
    length: Length,
    until_s: float = float("inf"),
    gpu: str | None = None,
    first: bool = True,
    least_samples: int = 0,
) -> tuple[CurvePoint, float]:
    """Measures a point. Returns it with the seconds spent in its measured steps.

    A point is measured once more, and not called steady, if its step time rose, fell or changed its level, or NVML says
    that heat throttled the GPU. After `until_s` on the monotonic clock only the first window begins. `gpu` is the UUID
    of a GPU to read meanwhile; `first` is for the model's first measurement. Raises what `Worker.measure` does, and
    BadInput for a user's data of fewer than `least_samples`.
    """
    series = Series(Shares((batch,)), least_samples=least_samples)
    settled = series.settle(worker, first=first)
    window, telemetry = _window(series, worker, length, until_s, gpu, settled)
    steady = is_steady(window.step_times_s) and not passing(_throttled(telemetry))
    again = not steady and time.monotonic() < until_s
    if again:
        window, telemetry = _window(series, worker, length, until_s, gpu)
    return _point(series, window, telemetry, steady=steady, again=again), series.timed_s


def measure_update(worker: Worker, batch: int) -> float:
    """The median seconds of a weight update, the same at every batch. Raises what `Worker.measure` does."""
    timings = worker.measure(Shares((batch,)), at_least=_UNLIKE_STEPS + _UPDATES, stamped=True)
    return median([sum(one.update_s or ()) for one in timings if isinstance(one, Timing)][_UNLIKE_STEPS:])


def _window(
    series: Series, worker: Worker, length: Length, until_s: float, gpu: str | None, settled: Sequence[Timing] = ()
) -> tuple[Timings, Telemetry | None]:
    """Measures until the point is known. Where a step is a timing by itself, those that `settled` it count too."""
    counts = settled if series.steps_per_timing(length.timing_s) == 1 else ()
    with nullcontext() if gpu is None else Sampler(gpu) as sampler:
        timings = series.until_known(worker, length, counts, until_s=until_s)
    return Timings(series.split, timings=timings), None if sampler is None else sampler.telemetry


def _throttled(telemetry: Telemetry | None) -> tuple[str, ...]:
    return (telemetry.throttle_reasons or ()) if telemetry else ()


def _point(series: Series, window: Timings, telemetry: Telemetry | None, *, steady: bool, again: bool) -> CurvePoint:
    return CurvePoint(
        batch=series.split.global_batch,
        step_time_s=window.step_time(window.began_s),
        throughput=window.throughput,
        memory_peak_bytes=series.memory_peak_bytes[0],
        precise=window.precision <= PRECISE_ENOUGH,
        steady=steady,
        measured_again=again,
        late_part=series.late_part,
        unlike=window.unlike,
        telemetry=telemetry,
    )
