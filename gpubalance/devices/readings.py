"""What NVML says of a GPU at one moment: its gauges and its counters."""

from __future__ import annotations

import time
from typing import NamedTuple

from gpubalance.devices.nvml import Card
from gpubalance.results.telemetry import Moment, throttling


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
