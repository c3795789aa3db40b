"""Reads the GPUs during a joint measurement."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from gpubalance.devices.telemetry import TelemetryRecorder
from gpubalance.errors import PartialResult
from gpubalance.remedies import known_error
from gpubalance.results.telemetry import Moment, Telemetry, passing
from gpubalance.settings.device import Device

_MOVED_WITHIN_S = 30.0


class Sensors:
    """All readings during a split's windows. Simulated devices, and those of another host, have
    none.
    """

    def __init__(self, devices: Sequence[Device] = ()) -> None:
        self.devices = tuple(devices)
        self._read = [(device, TelemetryRecorder()) for device in devices]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Reads every GPU while the block runs.

        After it this raises PartialResult if ECC counted uncorrected errors in a GPU's memory:
        nothing it did counts.
        """
        with ExitStack() as stack:
            for device, course in self._read:
                if device.told_by_nvml:
                    stack.enter_context(course.watching(device.uuid))
            yield
        for device, told in zip(self.devices, self.telemetry(), strict=True):
            if told is not None and told.ecc_uncorrected:
                row = known_error("ecc-error")
                raise PartialResult(
                    f"{device.label} had {told.ecc_uncorrected} memory errors that ECC did "
                    "not correct: its results can't be trusted",
                    cause=row.cause,
                    remedy=row.remedy,
                )

    @property
    def throttled(self) -> tuple[tuple[str, ...], ...]:
        """NVML's reasons that slowed each device down and may pass: heat or its power supply."""
        return tuple(passing((told and told.throttle_reasons) or ()) for told in self.telemetry())

    def move(self) -> bool:
        """Whether a GPU's temperature or clock still moves, as far as NVML tells."""
        since_s = time.monotonic() - _MOVED_WITHIN_S
        return any(course.moves(since_s) for _, course in self._read)

    @property
    def latest(self) -> tuple[Moment | None, ...]:
        """The latest reading of each device, None if NVML has none."""
        return tuple(course.latest for _, course in self._read)

    def telemetry(self, origin_s: float | None = None) -> tuple[Telemetry | None, ...]:
        """Each device's telemetry, in seconds from `origin_s` on the monotonic clock."""
        return tuple(course.telemetry(origin_s) for _, course in self._read)
