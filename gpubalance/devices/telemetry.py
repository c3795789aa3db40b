"""Watches one GPU while something else measures, and adds its readings up. Changes nothing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpubalance.devices.nvml import Card, with_gpu
from gpubalance.numbers.stats import median
from gpubalance.results.timing import Moment, Telemetry, throttling

INTERVAL_S = 0.2
PATIENCE_S = 0.3  # the longest that a hung call delays the end of a block
# More readings than this are thinned out evenly: a chart shows no more points.
_MOST_MOMENTS = 480
# More than a reading's own unrest.
_CLOCK_MOVES = 0.01
_DEGREES_MOVE = 2


@dataclass
class _Stretch:
    """What one GPU counted while it was watched without a pause.

    A power reading holds until the next one.
    """

    first: Counters
    last: Counters
    power_w: float = 0.0
    integral_j: float = 0.0

    @property
    def energy_j(self) -> float:
        """From the energy counter, else the integral of power; 0 if NVML provides neither."""
        # A counter that stood still was not updated yet: every GPU uses some power
        return (
            _rise(self.first.energy_mj, self.last.energy_mj) or 0
        ) / 1000 or self.integral_j


class TelemetryRecorder:
    """Adds up the readings of one GPU.

    It counts values, so that a day takes little more memory than a minute. Its readings are those
    of NVML while `watching`: none if NVML does not start, or does not know the GPU. Once the GPU is
    lost or must be reset they have `ended`, with the code of that known error, and none follow.
    """

    def __init__(self) -> None:
        self.readings = 0
        self.ended: str | None = None
        self._stretches: list[_Stretch] = []
        self._watched = False
        self._seen: dict[str, Counter[Any]] = {
            name: Counter() for name in Moment.model_fields if name != "at_s"
        }
        self._moments: list[Moment] = []
        self._apart = 1

    @contextmanager
    def watching(self, uuid: str, interval_s: float = INTERVAL_S) -> Iterator[None]:
        """Reads that GPU or MIG slice in a thread of its own while the block runs.

        The block waits for NVML neither at its start nor at its end: the figures begin with NVML's
        first answer, and end when a call hangs, or the GPU is lost or must be reset.
        """
        if self.ended is not None:
            yield
            return
        stop = threading.Event()
        left = threading.Event()
        lock = threading.Lock()

        def poll(card: Card) -> None:
            """Reads until the block ends: counters still belong to it then, gauges no longer."""
            while True:
                counters = read_counters(card)
                with lock:
                    if left.is_set():  # this call hung
                        return
                    self.count(counters)
                if stop.is_set():
                    return
                moment = read_gauges(card, counters.at_s)
                with lock:
                    if left.is_set():
                        return
                    self.gauge(moment)
                stop.wait(interval_s)

        def end(code: str) -> None:
            self.ended = code

        # A daemon, so that a hung call does not hold up the process's end
        thread = threading.Thread(
            target=with_gpu,
            args=(uuid, poll, end),
            name=f"telemetry of {uuid}",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(PATIENCE_S)
            with lock:
                left.set()
                # What follows until the next counters is something else's
                self._watched = False

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

    @property
    def latest(self) -> Moment | None:
        """The last reading that was kept; None before the first, and once they have ended."""
        if not self._moments or self.ended is not None:
            return None
        return self._moments[-1]

    def changed_since(self, since_s: float) -> bool:
        """Whether the GPU got warmer or colder, or its clock changed, since then."""
        temperatures: list[int] = []
        clocks: list[int] = []
        for moment in self._moments:
            if moment.at_s >= since_s:
                if moment.temperature_c is not None:
                    temperatures.append(moment.temperature_c)
                if moment.sm_clock_mhz:
                    clocks.append(moment.sm_clock_mhz)
        if temperatures and max(temperatures) - min(temperatures) >= _DEGREES_MOVE:
            return True
        if len(clocks) < 2:
            return False
        half = len(clocks) // 2
        return abs(median(clocks[half:]) / median(clocks[:half]) - 1) > _CLOCK_MOVES

    def telemetry(self, origin_s: float | None = None) -> Telemetry | None:
        """The summary of all readings, at NVML's resolution; None without any that may have ended.

        Times count from `origin_s` on the readings' clock, or from the first reading.
        """
        if not self.readings:
            if self.ended is None:
                return None
            return Telemetry(readings=0, duration_s=0.0, ended=self.ended)
        first = self._stretches[0].first
        last = self._stretches[-1].last
        if origin_s is None:
            origin_s = first.at_s
        power_w = None
        powers = self._seen["power_w"]
        if powers:
            power_w = round(sum(powers.elements()) / powers.total(), 3)
        all_reasons = None
        reasons = self._seen["throttle_reasons"]
        if reasons:
            all_reasons = tuple(sorted(set().union(*reasons)))
        energy_j = sum(stretch.energy_j for stretch in self._stretches)
        duration_s = sum(
            stretch.last.at_s - stretch.first.at_s for stretch in self._stretches
        )
        course = []
        for moment in self._moments:
            at_s = round(moment.at_s - origin_s, 3)
            course.append(moment.model_copy(update={"at_s": at_s}))
        uncorrected = None
        if last is not first:
            uncorrected = _rise(first.ecc_uncorrected, last.ecc_uncorrected)
        return Telemetry(
            readings=self.readings,
            duration_s=round(duration_s, 3),
            temperature_c=max(self._seen["temperature_c"], default=None),
            power_w=power_w,
            energy_j=round(energy_j, 3) or None,
            sm_clock_mhz=_middle(self._seen["sm_clock_mhz"]),
            memory_clock_mhz=_middle(self._seen["memory_clock_mhz"]),
            throttle_reasons=all_reasons,
            ecc_uncorrected=uncorrected,
            ended=self.ended,
            course=tuple(course),
        )


def _rise(first: int | None, last: int | None) -> int | None:
    """How much a counter rose; None if a value is unknown, or it fell as it was reset meanwhile."""
    if first is None or last is None or last < first:
        return None
    return last - first


def _middle(values: Counter[int]) -> int | None:
    if not values:
        return None
    return round(median(list(values.elements())))


class Counters(NamedTuple):
    """A GPU's counters at a moment, `at_s` on any clock."""

    at_s: float
    energy_mj: int | None
    ecc_uncorrected: int | None


def read_counters(card: Card) -> Counters:
    """The counters now, on the monotonic clock."""
    return Counters(
        at_s=time.monotonic(),
        energy_mj=card.ask("TotalEnergyConsumption"),
        ecc_uncorrected=ecc_errors(card, card.nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    )


def read_gauges(card: Card, at_s: float) -> Moment:
    """The gauges now, which is `at_s`."""
    power_mw = card.ask("PowerUsage")
    return Moment(
        at_s=at_s,
        temperature_c=card.ask(
            "TemperatureV Temperature", card.nvml.NVML_TEMPERATURE_GPU
        ),
        power_w=None if power_mw is None else power_mw / 1000,
        sm_clock_mhz=card.ask("ClockInfo", card.nvml.NVML_CLOCK_SM),
        memory_clock_mhz=card.ask("ClockInfo", card.nvml.NVML_CLOCK_MEM),
        throttle_reasons=throttle_reasons(card),
    )


def ecc_errors(card: Card, kind: int) -> int | None:
    """Errors of that kind since the driver was loaded; None if the GPU has no ECC or it is off."""
    errors: int | None = card.ask("TotalEccErrors", kind, card.nvml.NVML_VOLATILE_ECC)
    return errors


def throttle_reasons(card: Card) -> tuple[str, ...] | None:
    """Why the clocks are lower than they could be; None if NVML does not say."""
    mask = card.ask("CurrentClocksEventReasons CurrentClocksThrottleReasons")
    return None if mask is None else throttling([mask])
