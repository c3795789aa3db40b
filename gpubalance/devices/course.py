"""The readings of one GPU, added up while it is watched."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from gpubalance.numbers.stats import median
from gpubalance.results.telemetry import Gauges, Moment, Telemetry, throttling

# More readings than this are thinned out evenly: a chart shows no more points.
_MOST_MOMENTS = 480
# More than a reading's own unrest.
_CLOCK_MOVES = 0.01
_DEGREES_MOVE = 2


class Counters(NamedTuple):
    """A GPU's counters at a moment, `at_s` on any clock."""

    at_s: float
    energy_mj: int | None
    ecc_uncorrected: int | None


@dataclass
class _Stretch:
    """What one GPU counted while it was watched without a pause. A power reading holds until the next one."""

    first: Counters
    last: Counters
    power_mw: int = 0
    integral_mj: float = 0.0

    @property
    def energy_mj(self) -> float:
        """From the energy counter, else the integral of power; 0 if NVML provides neither."""
        # A counter that stood still was not updated yet: every GPU uses some power
        return _rise(self.first.energy_mj, self.last.energy_mj) or self.integral_mj


class Course:
    """Adds up the readings of one GPU. It counts values, so that a day takes little more memory than a minute."""

    def __init__(self) -> None:
        self.readings = 0
        self._stretches: list[_Stretch] = []
        self._watched = False
        self._gauges = tuple(Counter[int]() for _ in Gauges._fields)
        self._moments: list[tuple[float, Gauges]] = []
        self._apart = 1

    def count(self, counters: Counters) -> None:
        """Adds the counters: before each reading of the gauges, and at the end."""
        if not self._watched:
            self._stretches.append(_Stretch(counters, counters))
            self._watched = True
        stretch = self._stretches[-1]
        stretch.integral_mj += stretch.power_mw * (counters.at_s - stretch.last.at_s)
        stretch.last = counters

    def gauge(self, gauges: Gauges) -> None:
        """Adds a reading of the gauges, after its counters."""
        for values, value in zip(self._gauges, gauges, strict=True):
            if value is not None:
                values[value] += 1
        stretch = self._stretches[-1]
        if gauges.power_mw is not None:
            stretch.power_mw = gauges.power_mw
        if self.readings % self._apart == 0:
            self._moments.append((stretch.last.at_s, gauges))
        self.readings += 1
        if len(self._moments) > _MOST_MOMENTS:
            self._moments = self._moments[::2]
            self._apart *= 2

    def pause(self) -> None:
        """Leaves out the time until the next counters, as something else runs then."""
        self._watched = False

    @property
    def latest(self) -> Gauges | None:
        """The last reading that was kept, None before the first."""
        return self._moments[-1][1] if self._moments else None

    def moves(self, since_s: float) -> bool:
        """Whether the GPU got warmer or colder, or its clock changed, since then."""
        seen = [gauges for at_s, gauges in self._moments if at_s >= since_s]
        warm = [one.temperature_c for one in seen if one.temperature_c is not None]
        clocks = [one.sm_clock_mhz for one in seen if one.sm_clock_mhz]
        cut = len(clocks) // 2
        shifts = cut > 0 and abs(median(clocks[cut:]) / median(clocks[:cut]) - 1) > _CLOCK_MOVES
        return shifts or (bool(warm) and max(warm) - min(warm) >= _DEGREES_MOVE)

    def telemetry(self, origin_s: float | None = None) -> Telemetry | None:
        """The summary of all readings, at NVML's resolution; None without any.

        Times count from `origin_s` on the readings' clock, or from the first reading.
        """
        if not self.readings:
            return None
        origin_s = self._stretches[0].first.at_s if origin_s is None else origin_s
        temperatures, powers, sm_clocks, memory_clocks, reasons = self._gauges
        first, last = self._stretches[0].first, self._stretches[-1].last
        energy_mj = sum(stretch.energy_mj for stretch in self._stretches)
        return Telemetry(
            readings=self.readings,
            duration_s=round(sum(one.last.at_s - one.first.at_s for one in self._stretches), 3),
            temperature_c=max(temperatures, default=None),
            power_w=round(sum(powers.elements()) / powers.total()) / 1000 if powers else None,
            energy_j=round(energy_mj) / 1000 if energy_mj else None,
            sm_clock_mhz=_middle(sm_clocks),
            memory_clock_mhz=_middle(memory_clocks),
            throttle_reasons=throttling(reasons) if reasons else None,
            ecc_uncorrected=_rise(first.ecc_uncorrected, last.ecc_uncorrected) if last is not first else None,
            course=tuple(_moment(at_s - origin_s, gauges) for at_s, gauges in self._moments),
        )


def _moment(at_s: float, gauges: Gauges) -> Moment:
    return Moment(
        at_s=round(at_s, 3),
        temperature_c=gauges.temperature_c,
        power_w=None if gauges.power_mw is None else gauges.power_mw / 1000,
        sm_clock_mhz=gauges.sm_clock_mhz,
        memory_clock_mhz=gauges.memory_clock_mhz,
        throttle_reasons=None if gauges.reasons is None else throttling([gauges.reasons]),
    )


def _rise(first: int | None, last: int | None) -> int | None:
    """How much a counter rose; None if either value is unknown or it fell, as it was reset meanwhile."""
    return last - first if first is not None and last is not None and last >= first else None


def _middle(values: Counter[int]) -> int | None:
    return round(median(list(values.elements()))) if values else None
