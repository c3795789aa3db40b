"""What measuring a subject once gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, model_validator

from gpubalance.results.timing import Timing
from gpubalance.settings.record import Record, Seconds
from gpubalance.workers.messages import Peak

Peaks = tuple[int | None, ...]


class Window(Record):
    """Timings of a subject, its stamped steps, and what its devices reported meanwhile.

    The last has a value for each device. `throttled` has NVML's reasons that may pass, `late_part`
    is that of `Measured`.
    """

    timings: Annotated[tuple[Timing, ...], Field(min_length=1)]
    stamped: tuple[Timing, ...] = ()
    memory_peak_bytes: tuple[Peak, ...]
    throttled: tuple[tuple[str, ...], ...]
    late_part: Annotated[float, Field(ge=0, le=1)]

    @model_validator(mode="after")
    def _has_a_value_for_each_device(self) -> Window:
        lengths = {len(self.memory_peak_bytes), len(self.throttled)}
        for step in self.stamped:
            if step.timeline is None:
                lengths |= {len(step.compute_s or ()), len(step.update_s or ())}
        if len(lengths) > 1:
            raise ValueError("a value for each device is needed")
        return self

    @property
    def span_s(self) -> tuple[float, float]:
        """When it began and ended, on the monotonic clock."""
        timings = self.timings + self.stamped
        began_s = min(timing.ended_s - timing.seconds for timing in timings)
        return began_s, max(timing.ended_s for timing in timings)

    def later(self, seconds: float) -> Window:
        """The same window, so many seconds later."""
        moved = {
            "timings": _later(self.timings, seconds),
            "stamped": _later(self.stamped, seconds),
        }
        return self.model_copy(update=moved)


class TakenTurn(Record):
    """The windows of subjects that were measured at the same time; mostly it is only one.

    It is written to the journal as it is. `overlap_s` is for how long all were measured.
    """

    overlap_s: Seconds = 0.0
    windows: Annotated[tuple[Window, ...], Field(min_length=1)]

    @property
    def span_s(self) -> tuple[float, float]:
        """When they began and ended, on the monotonic clock."""
        spans_s = [window.span_s for window in self.windows]
        return min(began_s for began_s, _ in spans_s), max(
            ended_s for _, ended_s in spans_s
        )

    def later(self, seconds: float) -> TakenTurn:
        """The same windows, so many seconds later."""
        windows = tuple(window.later(seconds) for window in self.windows)
        return self.model_copy(update={"windows": windows})


def _later(timings: Sequence[Timing], seconds: float) -> tuple[Timing, ...]:
    moved = []
    for timing in timings:
        moved.append(timing.model_copy(update={"ended_s": timing.ended_s + seconds}))
    return tuple(moved)


def largest(*peaks: Peaks) -> Peaks:
    """The largest of these peaks for each device; those that are empty do not count."""
    by_device = zip(*filter(None, peaks), strict=True)
    return tuple(_largest_known(values) for values in by_device)


def _largest_known(peaks: Peaks) -> int | None:
    return max((peak for peak in peaks if peak is not None), default=None)
