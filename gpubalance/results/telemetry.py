"""How one GPU was doing over an interval. What it did not tell is null, never 0."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpubalance.numbers.stats import median
from gpubalance.results.common import Exact, Whole
from gpubalance.settings.record import Record

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


# A card at its power cap does what it can do for as long as one likes; of these it soon does less, or more.
_PASSING = ("thermal", "software thermal", "hardware slowdown", "power brake")

# More readings than that are thinned out, evenly: a picture has no more points.
_MOST_MOMENTS = 480


def passing(reasons: Iterable[str]) -> tuple[str, ...]:
    """Those of the reasons for which a GPU's speed is not what it will stay at."""
    there = set(reasons)
    return tuple(reason for reason in _PASSING if reason in there)


class Moment(Record):
    """One reading of a GPU, `at_s` seconds after the measurement began. A null field is one that it does not tell."""

    at_s: Exact
    temperature_c: Whole | None = None
    power_w: Exact | None = None
    sm_clock_mhz: Whole | None = None
    memory_clock_mhz: Whole | None = None
    throttle_reasons: tuple[str, ...] | None = None


class Telemetry(Record):
    """One GPU while it was watched, `duration_s` in all. A null field is one that it does not tell.

    The temperature is the highest, the power the mean, a clock the median of the readings. The energy is from the GPU's
    own counter, or else of its power over the time. `throttle_reasons` is each reason that any reading gave;
    `ecc_uncorrected` counts the errors since the first. `course` has readings in the order of time, some hundreds at
    most.
    """

    readings: Whole
    duration_s: Exact
    temperature_c: Whole | None = None
    power_w: Exact | None = None
    energy_j: Exact | None = None
    sm_clock_mhz: Whole | None = None
    memory_clock_mhz: Whole | None = None
    throttle_reasons: tuple[str, ...] | None = None
    ecc_uncorrected: Whole | None = None
    course: tuple[Moment, ...] = ()

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


class _Stretch:
    """Counters of one GPU while it was watched without a pause, and the energy by its power."""

    def __init__(self, first: Counters) -> None:
        self.first = self.last = first
        self._power_mw: int | None = None
        self._integral_mj: float | None = None

    def count(self, counters: Counters) -> None:
        if self._power_mw is not None:
            passed_s = counters.at_s - self.last.at_s
            self._integral_mj = (self._integral_mj or 0.0) + self._power_mw * passed_s
        self.last = counters

    def power(self, power_mw: int | None) -> None:
        """It holds until the next that is told."""
        self._power_mw = self._power_mw if power_mw is None else power_mw

    @property
    def seconds(self) -> float:
        return self.last.at_s - self.first.at_s

    @property
    def energy_mj(self) -> float | None:
        # A counter that stood still was not updated yet: no GPU takes no power
        return _rise(self.first.energy_mj, self.last.energy_mj) or self._integral_mj


class Course:
    """Readings of one GPU, added up. Values are counted, not listed: a day takes little more memory than a minute."""

    def __init__(self) -> None:
        self.readings = 0
        self._stretches: list[_Stretch] = []
        self._watched = False
        self._gauges = tuple(Counter[int]() for _ in Gauges._fields)
        self._moments: list[tuple[float, Gauges]] = []
        self._apart = 1

    def count(self, counters: Counters) -> None:
        """Counters before each reading of the gauges, and at the end."""
        if self._watched:
            self._stretches[-1].count(counters)
        else:
            self._stretches.append(_Stretch(counters))
            self._watched = True

    def gauge(self, gauges: Gauges) -> None:
        """A reading, after its counters."""
        for values, value in zip(self._gauges, gauges, strict=True):
            if value is not None:
                values[value] += 1
        stretch = self._stretches[-1]
        stretch.power(gauges.power_mw)
        if self.readings % self._apart == 0:
            self._moments.append((stretch.last.at_s, gauges))
        self.readings += 1
        if len(self._moments) > _MOST_MOMENTS:
            self._moments = self._moments[::2]
            self._apart *= 2

    def pause(self) -> None:
        """What comes next is not counted with what was before: the time between belongs to something else."""
        self._watched = False

    @property
    def latest(self) -> Gauges | None:
        """The last reading that is kept; None where there is none yet."""
        return self._moments[-1][1] if self._moments else None

    @property
    def telemetry(self) -> Telemetry | None:
        """None where there was no reading. Figures are as fine as NVML tells them; times are from the first reading."""
        return self.telemetry_since(self._stretches[0].first.at_s) if self._stretches else None

    def telemetry_since(self, origin_s: float) -> Telemetry | None:
        """The same, with its course in seconds from a moment of the readings' clock."""
        if not self.readings:
            return None
        temperatures, powers, sm_clocks, memory_clocks, reasons = self._gauges
        first, last = self._stretches[0].first, self._stretches[-1].last
        energies = [stretch.energy_mj for stretch in self._stretches if stretch.energy_mj]
        return Telemetry(
            readings=self.readings,
            duration_s=round(sum(stretch.seconds for stretch in self._stretches), 3),
            temperature_c=max(temperatures, default=None),
            power_w=round(sum(powers.elements()) / powers.total()) / 1000 if powers else None,
            energy_j=round(sum(energies)) / 1000 if energies else None,
            sm_clock_mhz=_middle(sm_clocks),
            memory_clock_mhz=_middle(memory_clocks),
            throttle_reasons=throttling(reasons) if reasons else None,
            ecc_uncorrected=_rise(first.ecc_uncorrected, last.ecc_uncorrected) if last is not first else None,
            course=tuple(moment(at_s - origin_s, gauges) for at_s, gauges in self._moments),
        )


def moment(at_s: float, gauges: Gauges) -> Moment:
    """A reading in the units of a result."""
    return Moment(
        at_s=round(at_s, 3),
        temperature_c=gauges.temperature_c,
        power_w=None if gauges.power_mw is None else gauges.power_mw / 1000,
        sm_clock_mhz=gauges.sm_clock_mhz,
        memory_clock_mhz=gauges.memory_clock_mhz,
        throttle_reasons=None if gauges.reasons is None else throttling([gauges.reasons]),
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


def all_reasons(before: Sequence[tuple[str, ...]], now: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Each device's throttle reasons of either, once. Empty where nothing is known of any device."""
    return tuple(tuple(dict.fromkeys((*a, *b))) for a, b in itertools.zip_longest(before, now, fillvalue=()))
