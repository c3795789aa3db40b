"""Measures one batch size on one device alone."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from typing import NamedTuple

from gpubalance.devices.telemetry import Sampler
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.warnings import PRECISE_ENOUGH
from gpubalance.numbers.stats import median
from gpubalance.numbers.steady import is_steady
from gpubalance.results.probe import CurvePoint
from gpubalance.results.telemetry import Telemetry, passing
from gpubalance.results.timing import Timing
from gpubalance.settings.shares import Shares
from gpubalance.workers.worker import Worker

_TIMINGS = 12  # in a measurement of the usual length
_USUAL_S = 3.0
_LONGEST = 4  # times the usual length, at most, until the result is precise
_UPDATES = 7
_UNLIKE_STEPS = 2  # stamped steps have their own trace, whose first steps are slower


class Length(NamedTuple):
    """How long a point is measured: between `least_s` and `most_s` seconds of steps, until it is precise.

    Precise means that half the 95 % interval of the step time is `within` that part of it.
    """

    least_s: float
    most_s: float
    timing_s: float
    within: float = PRECISE_ENOUGH

    @classmethod
    def of(cls, duration_s: float | None) -> Length:
        """The length that a request asks for: at least `duration_s`; None ends as soon as it is precise."""
        usual_s = duration_s or _USUAL_S
        return cls(duration_s or 0.0, _LONGEST * usual_s, usual_s / _TIMINGS)

    def until(self, within: float) -> Length:
        """The length to get `within` that part; a coarser one gets half the time, in timings half as long."""
        if within <= PRECISE_ENOUGH:
            return self._replace(within=within)
        return self._replace(within=within, most_s=self.most_s / 2, timing_s=self.timing_s / 2)

    @property
    def look(self) -> Length:
        """Half the usual length, precise or not: for a first impression."""
        return self._replace(least_s=self.least_s / 2, most_s=self.most_s / _LONGEST / 2, timing_s=self.timing_s / 2)

    @property
    def glance(self) -> Length:
        """A look that ends after the fewest timings allowed."""
        return self.look._replace(within=math.inf)

    def lasting(self, seconds: float) -> Length:
        """A length of that many seconds, at most the usual ones."""
        seconds = min(seconds, self.most_s / _LONGEST)
        return self._replace(least_s=seconds, most_s=seconds)


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
    series = Series(Shares((batch,)), timing_s=length.timing_s, least_samples=least_samples)
    series.settle(worker, first=first)
    telemetry = _windows(series, worker, length, until_s, gpu)
    spent_s = series.timed_s
    steady = is_steady(series.step_times_s) and not passing(_throttled(telemetry))
    again = not steady and time.monotonic() < until_s
    if again:
        series.timings.clear()
        telemetry = _windows(series, worker, length, until_s, gpu)
        spent_s += series.timed_s
    return _point(series, telemetry, steady=steady, again=again), spent_s


def measure_update(worker: Worker, batch: int) -> float:
    """The median seconds of a weight update, the same at every batch. Raises what `Worker.measure` does."""
    timings = worker.measure(Shares((batch,)), at_least=_UNLIKE_STEPS + _UPDATES, stamped=True)
    return median([sum(one.update_s or ()) for one in timings if isinstance(one, Timing)][_UNLIKE_STEPS:])


def _windows(series: Series, worker: Worker, length: Length, until_s: float, gpu: str | None) -> Telemetry | None:
    with nullcontext() if gpu is None else Sampler(gpu) as sampler:
        series.until_known(worker, length.within, least_s=length.least_s, most_s=length.most_s, until_s=until_s)
    return None if sampler is None else sampler.telemetry


def _throttled(telemetry: Telemetry | None) -> tuple[str, ...]:
    return (telemetry.throttle_reasons or ()) if telemetry else ()


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
        unlike=series.unlike,
        telemetry=telemetry,
    )
