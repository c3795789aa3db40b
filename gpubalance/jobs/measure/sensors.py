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

_CHANGED_WITHIN_S = 30.0


class Sensors:
    """All readings during a subject's windows; none of simulated devices and other hosts."""

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
            for device, recorder in self._read:
                if device.told_by_nvml:
                    stack.enter_context(recorder.watching(device.uuid))
            yield
        for device, telemetry in zip(self.devices, self.telemetry(), strict=True):
            if telemetry is not None and telemetry.ecc_uncorrected:
                row = known_error("ecc-error")
                errors = f"{telemetry.ecc_uncorrected} memory errors that ECC did not correct"
                raise PartialResult(
                    f"{device.label} had {errors}: what it computes can not be trusted",
                    cause=row.cause,
                    remedy=row.remedy,
                )

    @property
    def throttled(self) -> tuple[tuple[str, ...], ...]:
        """NVML's reasons that slowed each device down and may pass: heat or its power supply."""
        reasons = []
        for telemetry in self.telemetry():
            reasons.append(passing((telemetry and telemetry.throttle_reasons) or ()))
        return tuple(reasons)

    @property
    def ended(self) -> tuple[tuple[Device, str], ...]:
        """The GPUs that could not be read to the end, each with the code of the known error."""
        ended = []
        for device, recorder in self._read:
            if recorder.ended is not None:
                ended.append((device, recorder.ended))
        return tuple(ended)

    def gpu_is_changing(self) -> bool:
        """Whether a GPU's temperature or clock still changes, as far as NVML tells."""
        since_s = time.monotonic() - _CHANGED_WITHIN_S
        return any(recorder.changed_since(since_s) for _, recorder in self._read)

    @property
    def latest(self) -> tuple[Moment | None, ...]:
        """The latest reading of each device, None if NVML has none."""
        return tuple(recorder.latest for _, recorder in self._read)

    def telemetry(self, origin_s: float | None = None) -> tuple[Telemetry | None, ...]:
        """Each device's telemetry, in seconds from `origin_s` on the monotonic clock."""
        return tuple(recorder.telemetry(origin_s) for _, recorder in self._read)
