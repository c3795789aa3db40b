"""What several workers measure at once, each with its own model, and which of their
timings count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from gpubalance.errors import GpubalanceError
from gpubalance.jobs.events import Watch
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.timings import Window
from gpubalance.results.independent import OwnWindow
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record, Seconds
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import Ready


class AllAtOnce(Record):
    """A window of some devices: a part of each, and for how long all of them were measured; 0 for
    one alone.
    """

    overlap_s: Seconds = 0.0
    parts: Annotated[tuple[Window, ...], Field(min_length=1)]

    @property
    def span_s(self) -> tuple[float, float]:
        """When it began and ended, on the monotonic clock."""
        began, ended = zip(*(one.span_s for one in self.parts), strict=True)
        return min(began), max(ended)

    def later(self, seconds: float) -> AllAtOnce:
        """The same window, so many seconds later."""
        return self.model_copy(update={"parts": tuple(one.later(seconds) for one in self.parts)})


@dataclass
class OwnReplica:
    """A device that trains its own model.

    `number` is its place in the request, `facts` what its worker reported of the model, `error` why
    it dropped out.
    """

    number: int
    device: Device
    model: str
    batch: int
    facts: Ready | None = None
    error: GpubalanceError | None = None


class AtOnce:
    """A subject: one device "alone", or those that have not failed "at once". Each, by its number,
    has a series.
    """

    def __init__(
        self,
        name: Literal["alone", "at once"],
        replicas: Sequence[OwnReplica],
        watch: Watch,
        *,
        pipeline: bool,
    ) -> None:
        """With `pipeline` batches come from a user's input pipeline, one for each device."""
        self.name = name
        self.replicas = replicas
        self.windows = list[AllAtOnce]()
        series_of = partial(Series, name=name, watch=watch, pipeline=pipeline, stamps=False)
        self.series = {
            one.number: series_of(Shares((one.batch,)), devices=(one.device,)) for one in replicas
        }

    @property
    def precision(self) -> float:
        """That of the device that is known least exactly."""
        return max(one.precision for one in self.series.values())

    def add(self, window: AllAtOnce) -> tuple[OwnWindow, ...]:
        """Adds a window, and returns what is told of it."""
        self.windows.append(window)
        for series, part in zip(self.series.values(), window.parts, strict=True):
            series.add(part)
        return tuple(map(_told, self.series.values()))


def _told(series: Series) -> OwnWindow:
    timings = series.last
    return OwnWindow(
        device=series.devices[0],
        batch=series.split.global_batch,
        step_time_s=timings.step_time(timings.began_s),
        throughput=timings.throughput,
        memory_peak_bytes=timings.memory_peak_bytes[0],
        telemetry=series.sensors.telemetry(timings.began_s)[0],
    )


class CommonWindow:
    """Begins when each worker has given its first timing, and ends when each has given enough that
    count.

    Only this process's clock says when a timing arrives. A timing counts if the one before it
    arrived after the common begin, so that it began after that too, and if it arrives before the
    common end: then every device trained all the while. Each worker's thread shares the window.
    """

    def __init__(self, numbers: Sequence[int], length: StoppingRule) -> None:
        """The window ends when what counts of each worker has that length."""
        self.counted: dict[int, list[Timing]] = {number: [] for number in numbers}
        self.overlap_s = 0.0
        self.length = length
        self._lock = threading.Lock()
        self._came_s: dict[int, float] = {}
        self._moves: dict[int, bool] = {}
        self._began_s: float | None = None
        self._is_over = False

    def take(self, number: int, timing: Timing, *, moves: bool = False) -> None:
        """Takes a worker's timing that has just arrived. `moves`: its GPU's clock or temperature
        still does.
        """
        with self._lock:
            now_s, before_s = time.monotonic(), self._came_s.get(number)
            self._came_s[number], self._moves[number] = now_s, moves
            if self._is_over:
                return
            if self._began_s is None:
                self._began_s = now_s if len(self._came_s) == len(self.counted) else None
                return
            if before_s is not None and before_s >= self._began_s:
                self.counted[number].append(timing)
            if all(
                self.length.is_reached(its, moves=self._moves[n]) for n, its in self.counted.items()
            ):
                self._is_over, self.overlap_s = True, now_s - self._began_s

    def is_over(self) -> bool:
        """Whether the window has ended: no timing that arrives from now on counts."""
        return self._is_over

    def leave(self) -> None:
        """Ends the window after a worker has failed; what the others measured in it is
        worthless.
        """
        with self._lock:
            self._is_over = True
