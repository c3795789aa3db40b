"""Watches one GPU while something else measures, and adds its readings up. Changes nothing on it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpubalance.devices.nvml import Card, with_gpu
from gpubalance.numbers.stats import median
from gpubalance.results.telemetry import Moment, Telemetry, throttling

INTERVAL_S = 0.2
PATIENCE_S = 0.3  # the longest that a hung call delays the end of a block


class Sampler:
    """Reads one GPU or MIG slice in its own thread while its `with` block runs.

    After the block, `telemetry` is what it saw: None if NVML does not start, does not know the UUID, loses the GPU or
    does not answer in time. The block waits for NVML neither at its start nor at its end: the figures begin with NVML's
    first answer (see `readings`) and end when a call hangs.
    """

    def __init__(self, uuid: str, interval_s: float = INTERVAL_S, course: Course | None = None) -> None:
        """Adds its readings to `course`, or to a new one."""
        self.telemetry: Telemetry | None = None
        self._uuid = uuid
        self._interval_s = interval_s
        self._course = course or Course()
        self._ended = False
        # For the course, as a thread that hung may come back at any time
        self._lock = threading.Lock()
        self._lost = False
        self._stop = threading.Event()
        # A daemon, so that a hung call does not hold up the process's end
        self._thread = threading.Thread(target=self._watch, name=f"telemetry of {uuid}", daemon=True)

    @property
    def readings(self) -> int:
        """The number of readings so far."""
        return self._course.readings

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        with self._lock:
            self._ended = True
            self._course.pause()
            self.telemetry = None if self._lost else self._course.telemetry()

    def _watch(self) -> None:
        self._lost = with_gpu(self._uuid, self._poll) is None

    def _poll(self, card: Card) -> bool:
        while True:
            counters = _counters(card)
            with self._lock:
                # This thread hung; the course may belong to another sampler now
                if self._ended:
                    return True
                self._course.count(counters)
            # The counters still belong to the block, the gauges no longer
            if self._stop.is_set():
                return True
            moment = _moment(card, counters.at_s)
            with self._lock:
                if self._ended:
                    return True
                self._course.gauge(moment)
            self._stop.wait(self._interval_s)


def _counters(card: Card) -> Counters:
    uncorrected = ecc_errors(card, card.nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    return Counters(time.monotonic(), energy_mj=card.ask("TotalEnergyConsumption"), ecc_uncorrected=uncorrected)


def ecc_errors(card: Card, kind: int) -> int | None:
    """Errors of that kind since the driver was loaded; None if the GPU has no ECC or it is off."""
    errors: int | None = card.ask("TotalEccErrors", kind, card.nvml.NVML_VOLATILE_ECC)
    return errors


def throttle_mask(card: Card) -> int | None:
    """NVML's bit mask of the reasons why the clocks are lower than they could be; None if NVML gives none."""
    mask: int | None = card.ask("CurrentClocksEventReasons CurrentClocksThrottleReasons")
    return mask


def _moment(card: Card, at_s: float) -> Moment:
    power_mw, mask = card.ask("PowerUsage"), throttle_mask(card)
    return Moment(
        at_s=at_s,
        temperature_c=card.ask("TemperatureV Temperature", card.nvml.NVML_TEMPERATURE_GPU),
        power_w=None if power_mw is None else power_mw / 1000,
        sm_clock_mhz=card.ask("ClockInfo", card.nvml.NVML_CLOCK_SM),
        memory_clock_mhz=card.ask("ClockInfo", card.nvml.NVML_CLOCK_MEM),
        throttle_reasons=None if mask is None else throttling([mask]),
    )


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
    power_w: float = 0.0
    integral_j: float = 0.0

    @property
    def energy_j(self) -> float:
        """From the energy counter, else the integral of power; 0 if NVML provides neither."""
        # A counter that stood still was not updated yet: every GPU uses some power
        return (_rise(self.first.energy_mj, self.last.energy_mj) or 0) / 1000 or self.integral_j


class Course:
    """Adds up the readings of one GPU. It counts values, so that a day takes little more memory than a minute."""

    def __init__(self) -> None:
        self.readings = 0
        self._stretches: list[_Stretch] = []
        self._watched = False
        self._seen: dict[str, Counter[Any]] = {name: Counter() for name in Moment.model_fields if name != "at_s"}
        self._moments: list[Moment] = []
        self._apart = 1

    def count(self, counters: Counters) -> None:
        """Adds the counters: before each reading of the gauges, and at the end."""
        if not self._watched:
            self._stretches.append(_Stretch(counters, counters))
            self._watched = True
        stretch = self._stretches[-1]
        stretch.integral_j += stretch.power_w * (counters.at_s - stretch.last.at_s)
        stretch.last = counters

    def gauge(self, moment: Moment) -> None:
        """Adds a reading of the gauges, after its counters."""
        for name, values in self._seen.items():
            value = getattr(moment, name)
            if value is not None:
                values[value] += 1
        if moment.power_w is not None:
            self._stretches[-1].power_w = moment.power_w
        if self.readings % self._apart == 0:
            self._moments.append(moment)
        self.readings += 1
        if len(self._moments) > _MOST_MOMENTS:
            self._moments = self._moments[::2]
            self._apart *= 2

    def pause(self) -> None:
        """Leaves out the time until the next counters, as something else runs then."""
        self._watched = False

    @property
    def latest(self) -> Moment | None:
        """The last reading that was kept, None before the first."""
        return self._moments[-1] if self._moments else None

    def moves(self, since_s: float) -> bool:
        """Whether the GPU got warmer or colder, or its clock changed, since then."""
        seen = [moment for moment in self._moments if moment.at_s >= since_s]
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
        first, last = self._stretches[0].first, self._stretches[-1].last
        origin_s = first.at_s if origin_s is None else origin_s
        powers, reasons = self._seen["power_w"], self._seen["throttle_reasons"]
        energy_j = sum(stretch.energy_j for stretch in self._stretches)
        return Telemetry(
            readings=self.readings,
            duration_s=round(sum(one.last.at_s - one.first.at_s for one in self._stretches), 3),
            temperature_c=max(self._seen["temperature_c"], default=None),
            power_w=round(sum(powers.elements()) / powers.total(), 3) if powers else None,
            energy_j=round(energy_j, 3) or None,
            sm_clock_mhz=_middle(self._seen["sm_clock_mhz"]),
            memory_clock_mhz=_middle(self._seen["memory_clock_mhz"]),
            throttle_reasons=tuple(sorted(set().union(*reasons))) if reasons else None,
            ecc_uncorrected=_rise(first.ecc_uncorrected, last.ecc_uncorrected) if last is not first else None,
            course=tuple(one.model_copy(update={"at_s": round(one.at_s - origin_s, 3)}) for one in self._moments),
        )


def _rise(first: int | None, last: int | None) -> int | None:
    """How much a counter rose; None if either value is unknown or it fell, as it was reset meanwhile."""
    return last - first if first is not None and last is not None and last >= first else None


def _middle(values: Counter[int]) -> int | None:
    return round(median(list(values.elements()))) if values else None
