"""Measures one batch size on one device alone."""

from __future__ import annotations

import math
import time

from gpubalance.jobs.events import Event
from gpubalance.jobs.measure.length import Length
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.timings import Timings
from gpubalance.jobs.measure.turns import in_turns
from gpubalance.jobs.measure.warnings import PRECISE_ENOUGH, Slowed
from gpubalance.numbers.stats import median
from gpubalance.numbers.steady import is_steady
from gpubalance.results.probe import CurvePoint
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device
from gpubalance.settings.requests import Measuring
from gpubalance.settings.shares import Shares
from gpubalance.workers.worker import Worker

ONE_WINDOW = Measuring(windows=1)
_UPDATES = 7
_UNLIKE_STEPS = 2  # stamped steps have their own trace, whose first steps are slower


class Point:
    """A batch size as a subject. Its window lasts until it is known, so that another follows only a slower device.

    It is measured once more, and not called steady, if its step time rose, fell or changed its level, or NVML says that
    heat throttled the GPU: then the last window counts. After `until_s` on the monotonic clock no other begins. A
    user's data of fewer than `least_samples` is refused.
    """

    precision = 0.0

    def __init__(
        self, device: Device, batch: int, length: Length, until_s: float = math.inf, least_samples: int = 0
    ) -> None:
        self._length = length
        self._until_s = until_s
        self._series = Series(Shares((batch,)), devices=(device,), stamps=False, least_samples=least_samples)
        self._settled: list[Timing] = []
        self.windows = self._series.windows

    def measure(self, worker: Worker, *, first: bool) -> CurvePoint:
        """Warms it up and measures it; `first` is for the model's first measurement. Raises what `Worker.measure` does.

        Where a step is a timing by itself, those that settled it count too.
        """
        settled = self._series.settle(worker, first=first)
        self._settled = settled if self._series.steps_per_timing(self._length.timing_s) == 1 else []
        in_turns(lambda: [self], lambda *_: self._window(worker), ONE_WINDOW, self._slowed, quiet)
        return self._result()

    @property
    def timed_s(self) -> float:
        """The seconds spent in its measured steps."""
        return self._series.timed_s

    def _window(self, worker: Worker) -> None:
        settled = [] if self.windows else self._settled
        self._series.add(self._series.window(worker, self._length, settled, until_s=self._until_s))

    @property
    def _steady(self) -> bool:
        (reasons,), timings = self._series.throttled, self._series.timings
        return len(self.windows) == 1 and not reasons and is_steady([one.seconds / one.steps for one in timings])

    def _slowed(self) -> Slowed:
        again = not self._steady and time.monotonic() < self._until_s
        return [(self._series.devices[0], self._series.throttled[0])] if again else []

    def _result(self) -> CurvePoint:
        series = self._series
        last = Timings(series.split, series.windows[-1:], series.sensors)
        return CurvePoint(
            batch=series.split.global_batch,
            step_time_s=last.step_time(last.began_s),
            throughput=last.throughput,
            memory_peak_bytes=series.memory_peak_bytes[0],
            precise=last.precision <= PRECISE_ENOUGH,
            steady=self._steady,
            measured_again=len(self.windows) > 1,
            late_part=series.late_part,
            unlike=last.unlike,
            telemetry=series.sensors.telemetry(last.began_s)[0],
        )


def measure_update(worker: Worker, batch: int) -> float:
    """The median seconds of a weight update, the same at every batch. Raises what `Worker.measure` does."""
    timings = worker.measure(Shares((batch,)), at_least=_UNLIKE_STEPS + _UPDATES, stamped=True)
    return median([sum(one.update_s or ()) for one in timings if isinstance(one, Timing)][_UNLIKE_STEPS:])


def quiet(event: Event) -> None:
    """Watches nothing: what a point's turns tell is told of the point."""
    del event
