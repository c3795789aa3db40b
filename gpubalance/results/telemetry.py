"""What a GPU reported while it was watched. What it did not report is null, never 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from gpubalance.results.common import Exact, Whole
from gpubalance.settings.record import Record, Shown

# NVML's bits, https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "thermal",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "reliability",
}
# Idle, and application or display clocks that somebody has set: they are intended, so not
# throttling.
_NO_THROTTLING = 0x1 | 0x2 | 0x100
# A card can stay at its power cap for ever. These reasons pass or get worse, and its speed changes
# with them.
_PASSING = ("thermal", "software thermal", "hardware slowdown", "power brake")


def passing(reasons: Iterable[str]) -> tuple[str, ...]:
    """The reasons for which the GPU will not keep its present speed."""
    all_reasons = set(reasons)
    return tuple(reason for reason in _PASSING if reason in all_reasons)


Reasons = Annotated[tuple[str, ...] | None, Shown("throttled by")]


class Moment(Record):
    """One reading of a GPU, `at_s` seconds after the measurement began.

    What it did not report is null. Until it is part of a result, `at_s` is on the monotonic clock.
    """

    at_s: Annotated[Exact, Shown("at", "s")]
    temperature_c: Whole | None = None
    power_w: Exact | None = None
    sm_clock_mhz: Annotated[Whole | None, Shown("SM clock")] = None
    memory_clock_mhz: Whole | None = None
    throttle_reasons: Reasons = None


class Telemetry(Record):
    """One GPU while it was watched, for `duration_s` in all. What it did not report is null.

    The temperature is the highest, the power the mean, a clock the median of the readings. The
    energy is from the GPU's own counter, else its power integrated over time. `throttle_reasons`
    has each reason that any reading gave; `ecc_uncorrected` counts the errors since the first
    reading. `ended` is the code of the known error after which there were no more readings, as the
    GPU was lost or had to be reset. `course` has at most a few hundred readings, in order of time.
    """

    readings: Whole
    duration_s: Annotated[Exact, Shown("over", "s")]
    temperature_c: Annotated[Whole | None, Shown("hottest")] = None
    power_w: Annotated[Exact | None, Shown("mean power")] = None
    energy_j: Exact | None = None
    sm_clock_mhz: Annotated[Whole | None, Shown("SM clock")] = None
    memory_clock_mhz: Whole | None = None
    throttle_reasons: Reasons = None
    ecc_uncorrected: Annotated[Whole | None, Shown("uncorrected ECC errors")] = None
    ended: Annotated[str | None, Shown("ended as")] = None
    course: tuple[Moment, ...] = ()

    def samples_per_joule(self, throughput: float) -> float | None:
        """throughput · duration_s / energy_j, for a GPU that gave that throughput throughout."""
        if self.energy_j:
            return throughput * self.duration_s / self.energy_j
        return None


def throttling(masks: Iterable[int]) -> tuple[str, ...]:
    """The reasons in NVML's bit masks, in plain words, sorted; an unknown reason by its number."""
    together = 0
    for mask in masks:
        together |= mask & ~_NO_THROTTLING
    reasons = []
    for place in range(together.bit_length()):
        bit = 1 << place
        if together & bit:
            reasons.append(_REASONS.get(bit, f"reason {bit:#x}"))
    return tuple(sorted(reasons))
