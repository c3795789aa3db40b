"""What a look at a subject gave: the measurement itself, what the journal holds, and what results are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from gpubalance.results.timing import Timing
from gpubalance.settings.record import Record
from gpubalance.workers.messages import Peak

if TYPE_CHECKING:
    from typing_extensions import Self


class Window(Record):
    """Timings of a subject, its stamped steps, and what its devices reported meanwhile; the rest is a value a device.

    `throttled` has NVML's reasons that may pass, `late_part` is that of `Measured`.
    """

    timings: Annotated[tuple[Timing, ...], Field(min_length=1)]
    stamped: tuple[Timing, ...] = ()
    memory_peak_bytes: tuple[Peak, ...]
    throttled: tuple[tuple[str, ...], ...]
    late_part: Annotated[float, Field(ge=0, le=1)]

    @model_validator(mode="after")
    def _has_a_value_for_each_device(self) -> Self:
        lengths = {len(self.memory_peak_bytes), len(self.throttled)}
        for one in self.stamped:
            if one.timeline is None:
                lengths |= {len(one.compute_s or ()), len(one.update_s or ())}
        if len(lengths) > 1:
            raise ValueError("a value for each device is needed")
        return self

    @property
    def span_s(self) -> tuple[float, float]:
        """When it began and ended, on the monotonic clock."""
        ends = [(one.ended_s - one.seconds, one.ended_s) for one in (*self.timings, *self.stamped)]
        return min(began for began, _ in ends), max(ended for _, ended in ends)

    def later(self, seconds: float) -> Self:
        """The same window, so many seconds later."""

        def moved(timings: tuple[Timing, ...]) -> tuple[Timing, ...]:
            return tuple(one.model_copy(update={"ended_s": one.ended_s + seconds}) for one in timings)

        return self.model_copy(update={"timings": moved(self.timings), "stamped": moved(self.stamped)})
