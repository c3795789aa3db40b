"""Watches one GPU while something else measures. Changes nothing on it."""

from __future__ import annotations

import threading
import time

from gpubalance.devices.course import Counters, Course
from gpubalance.devices.nvml import Card, with_gpu
from gpubalance.results.telemetry import Gauges, Telemetry

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
        self._lock = threading.Lock()  # for the course, as a thread that hung may come back at any time
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
                if self._ended:  # this thread hung; the course may belong to another sampler now
                    return True
                self._course.count(counters)
            if self._stop.is_set():  # the counters still belong to the block, the gauges no longer
                return True
            gauges = _gauges(card)
            with self._lock:
                if self._ended:
                    return True
                self._course.gauge(gauges)
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


def _gauges(card: Card) -> Gauges:
    return Gauges(
        temperature_c=card.ask("TemperatureV Temperature", card.nvml.NVML_TEMPERATURE_GPU),
        power_mw=card.ask("PowerUsage"),
        sm_clock_mhz=card.ask("ClockInfo", card.nvml.NVML_CLOCK_SM),
        memory_clock_mhz=card.ask("ClockInfo", card.nvml.NVML_CLOCK_MEM),
        reasons=throttle_mask(card),
    )
