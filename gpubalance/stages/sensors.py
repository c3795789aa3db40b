"""The GPUs of a joint measurement, read while it is measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from gpubalance.config import Device
from gpubalance.devices.telemetry import Sampler
from gpubalance.telemetry import Course, Gauges, Telemetry


class Sensors:
    """One split's readings: those of its windows, added up. Simulated devices have none."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._uuids = [None if device.simulated else device.uuid for device in devices]
        self._courses = [Course() for _ in devices]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Reads every GPU while the block runs."""
        with ExitStack() as stack:
            for uuid, course in zip(self._uuids, self._courses, strict=True):
                if uuid is not None:
                    stack.enter_context(Sampler(uuid, course=course))
            yield

    @property
    def latest(self) -> tuple[Gauges | None, ...]:
        """What each device is doing, as far as it tells."""
        return tuple(course.latest for course in self._courses)

    def telemetry(self, origin_s: float) -> tuple[Telemetry | None, ...]:
        """Of each device, in seconds from a moment of the monotonic clock."""
        return tuple(course.telemetry_since(origin_s) for course in self._courses)
