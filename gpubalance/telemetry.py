"""How one GPU was doing over an interval. What it did not tell is null, never 0."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from gpubalance.config import Record
from gpubalance.stats import median

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
# Idle, and the application and display clocks that somebody has set: as asked for, which is no throttling
_NO_THROTTLING = 0x1 | 0x2 | 0x100


class Telemetry(Record):
    """One GPU between its first and its last reading, `duration_s` apart. A null field is one that it does not tell.

    The temperature is the highest, the power the mean, a clock the median of the readings. The energy is from the GPU's
    own counter, or else of its power over the time. `throttle_reasons` is each reason that any reading gave;
    `ecc_uncorrected` counts the errors since the first.
    """

    readings: int
    duration_s: float
    temperature_c: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    ecc_uncorrected: int | None = None

    def samples_per_joule(self, throughput: float) -> float | None:
        """throughput · duration_s / energy_j, for a GPU that gave `throughput` samples per second all the time."""
        return throughput * self.duration_s / self.energy_j if self.energy_j else None


class Gauges(NamedTuple):
    """What a GPU is doing at a moment, in NVML's units."""

    temperature_c: int | None
    power_mw: int | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    reasons: int | None


class Counters(NamedTuple):
    """What a GPU has counted up to a moment, by any clock in seconds."""

    at_s: float
    energy_mj: int | None
    ecc_uncorrected: int | None


class Course:
    """Readings of one GPU, added up. Values are counted, not listed: a day takes little more memory than a minute."""

    def __init__(self) -> None:
        self.readings = 0
        self._first: Counters | None = None
        self._last: Counters | None = None
        self._gauges = tuple(Counter[int]() for _ in Gauges._fields)
        self._power_mw: int | None = None
        self._integral_mj: float | None = None

    def count(self, counters: Counters) -> None:
        """Counters before each reading of the gauges, and at the end."""
        if self._power_mw is not None and self._last is not None:
            passed_s = counters.at_s - self._last.at_s
            self._integral_mj = (self._integral_mj or 0.0) + self._power_mw * passed_s
        self._first = self._first or counters
        self._last = counters

    def gauge(self, gauges: Gauges) -> None:
        """A reading; its power holds until the next that has one."""
        for values, value in zip(self._gauges, gauges, strict=True):
            if value is not None:
                values[value] += 1
        self._power_mw = self._power_mw if gauges.power_mw is None else gauges.power_mw
        self.readings += 1

    @property
    def telemetry(self) -> Telemetry | None:
        """None where there was no reading. Figures are as fine as NVML tells them."""
        first, last = self._first, self._last
        if first is None or last is None or not self.readings:
            return None
        temperatures, powers, sm_clocks, memory_clocks, reasons = self._gauges
        # A counter that stood still was not updated yet: no GPU takes no power
        energy_mj = _rise(first.energy_mj, last.energy_mj) or self._integral_mj
        return Telemetry(
            readings=self.readings,
            duration_s=round(last.at_s - first.at_s, 3),
            temperature_c=max(temperatures, default=None),
            power_w=round(sum(powers.elements()) / powers.total()) / 1000 if powers else None,
            energy_j=round(energy_mj) / 1000 if energy_mj else None,
            sm_clock_mhz=_middle(sm_clocks),
            memory_clock_mhz=_middle(memory_clocks),
            throttle_reasons=throttling(reasons) if reasons else None,
            ecc_uncorrected=_rise(first.ecc_uncorrected, last.ecc_uncorrected) if last is not first else None,
        )


def throttling(masks: Iterable[int]) -> tuple[str, ...]:
    """The reasons in NVML's bit masks, in plain words and in order; one newer than this list by its number."""
    together = functools.reduce(operator.or_, masks, 0) & ~_NO_THROTTLING
    bits = [1 << n for n in range(together.bit_length()) if together >> n & 1]
    return tuple(sorted(_REASONS.get(bit, f"reason {bit:#x}") for bit in bits))


def _rise(first: int | None, last: int | None) -> int | None:
    """None too for a counter that fell: it was reset on the way."""
    return last - first if first is not None and last is not None and last >= first else None


def _middle(values: Counter[int]) -> int | None:
    return round(median(list(values.elements()))) if values else None
