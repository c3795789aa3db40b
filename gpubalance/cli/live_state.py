"""What the live screen knows: of a joint run's devices, and of devices that are probed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rich.text import Text

from gpubalance.jobs.events import DeviceDone, PointDone, TimingDone, TrialDone, WindowDone
from gpubalance.render.live import LiveRow, LiveTotal, joint_lines, probe_lines
from gpubalance.results.probe import CurvePoint
from gpubalance.results.telemetry import Gauges
from gpubalance.settings.device import Device

_KEPT = 60


class _Course:
    """The last of one split: its rates, and what its stamped steps took."""

    def __init__(self, batches: tuple[int, ...]) -> None:
        self.batches = batches
        self.step_s: float | None = None
        self.rates: deque[float] = deque(maxlen=_KEPT)
        self.compute_s: tuple[float, ...] | None = None
        self.memory_bytes: tuple[int | None, ...] = (None,) * len(batches)

    def take(self, event: TimingDone) -> None:
        if event.compute_s is not None:
            self.compute_s = event.compute_s
            return
        self.step_s = event.step_s
        self.rates.append(sum(self.batches) / event.step_s)


class JointState:
    """A joint run of some devices: the split, and the even split beside it."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self._devices = devices
        self._own: _Course | None = None
        self._even: _Course | None = None
        self._gauges: Sequence[Gauges | None] = ()

    def is_of(self, event: TimingDone | WindowDone) -> bool:
        """Whether these are its devices."""
        return [d.uuid for d in self._devices] == [d.uuid for d in event.devices]

    def take(self, event: TimingDone | WindowDone) -> None:
        """Another split than before takes its place."""
        batches = event.batches if isinstance(event, TimingDone) else event.measurement.batches
        course = self._even if event.name else self._own
        if course is None or course.batches != batches:
            course = _Course(batches)
            if event.name:
                self._even = course
            else:
                self._own, self._even = course, None
        if isinstance(event, TimingDone):
            course.take(event)
            self._gauges = event.gauges
        else:
            course.memory_bytes = tuple(replica.memory_peak_bytes for replica in event.measurement.replicas)

    def lines(self, width: int, height: int) -> list[Text]:
        """The screen's, in so many columns and lines."""
        own = self._own
        if own is None:
            return []
        computes = own.compute_s or (None,) * len(own.batches)
        gauges = self._gauges or (None,) * len(own.batches)
        rows = [
            LiveRow(
                label=device.label,
                name=device.name,
                batch=str(batch),
                throughput=None if own.step_s is None else batch / own.step_s,
                compute_s=compute,
                memory_bytes=memory,
                gauges=gauge,
            )
            for device, batch, compute, memory, gauge in zip(
                self._devices, own.batches, computes, own.memory_bytes, gauges, strict=True
            )
        ]
        even = self._even
        total = LiveTotal(
            batch=sum(own.batches),
            step_s=own.step_s,
            rates=list(own.rates),
            even="/".join(map(str, even.batches)) if even else "",
            even_rates=list(even.rates) if even else [],
        )
        return joint_lines(rows, total, width, height)


class ProbeState:
    """Devices that are probed, each alone: their curves, and which of them are over."""

    def __init__(self) -> None:
        self._devices: dict[str, Device] = {}
        self._points: dict[str, dict[int, CurvePoint]] = {}
        self._done: set[str] = set()

    def take(self, event: PointDone | TrialDone | DeviceDone) -> None:
        """A point, a trial, or a device's end."""
        uuid = event.device.uuid
        self._devices[uuid] = event.device
        points = self._points.setdefault(uuid, {})
        if isinstance(event, PointDone):
            points[event.point.batch] = event.point
        elif isinstance(event, DeviceDone):
            self._done.add(uuid)

    def points(self, device: Device) -> list[CurvePoint]:
        """What is measured of a device."""
        return list(self._points.get(device.uuid, {}).values())

    def lines(self, width: int, height: int) -> list[Text]:
        """The tables of those that are not over, as far as there is room."""
        going = [(d, self.points(d)) for uuid, d in self._devices.items() if uuid not in self._done]
        return probe_lines([(device, points) for device, points in going if points], width, height)
