"""What is measured, with which sensors, and what measuring it once gave."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field, model_validator

from gpubalance.devices.telemetry import TelemetryRecorder
from gpubalance.errors import PartialResult
from gpubalance.remedies import known_error
from gpubalance.results.timing import Moment, Telemetry, Timing, passing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.settings.measuring import OWN_SPLIT
from gpubalance.settings.record import Record, Seconds
from gpubalance.workers.messages import Peak, Pipe

_CHANGED_WITHIN_S = 30.0


@dataclass(frozen=True)
class Workload:
    """A split on its devices, a replica each, or with `cut` a model cut over them, in a pipeline.

    The `name` tells workloads of one measurement apart. Baselines are for comparison only. Batches
    come `from_input_pipeline`, the user's own, or lie on the devices. `group` is the number of the
    workers that train it. Windows have stamped steps if it `wants_stamps`, and whoever watches gets
    each timing if it is `shown`. A user's data of fewer than `least_samples` is refused.
    """

    split: BatchSplit
    devices: tuple[Device, ...] = ()
    name: str = OWN_SPLIT
    is_baseline: bool = False
    from_input_pipeline: bool = False
    group: int = 0
    wants_stamps: bool = True
    shown: bool = True
    least_samples: int = 0
    cut: Pipe | None = None

    @property
    def is_independent(self) -> bool:
        """Whether it is a device with a model of its own."""
        return self.name in ("alone", "at once")

    @property
    def unnamed(self) -> Workload:
        """The same under no name: what a worker trains."""
        return replace(self, name="", is_baseline=False)


# Workloads that are trained and measured at the same time, each by its own worker: usually one.
# Several are devices with a model of their own.
MeasuredTogether = tuple[Workload, ...]


Peaks = tuple[int | None, ...]


class Window(Record):
    """Timings of a workload, its stamped steps, and what its devices reported meanwhile.

    The last has a value for each device. `throttled` has NVML's reasons that may pass, `late_part`
    is that of `Measured`.
    """

    timings: Annotated[tuple[Timing, ...], Field(min_length=1)]
    stamped: tuple[Timing, ...] = ()
    memory_peak_bytes: tuple[Peak, ...]
    throttled: tuple[tuple[str, ...], ...]
    late_part: Annotated[float, Field(ge=0, le=1)]

    @model_validator(mode="after")
    def _has_a_value_for_each_device(self) -> Window:
        lengths = {len(self.memory_peak_bytes), len(self.throttled)}
        for step in self.stamped:
            if step.timeline is None:
                lengths |= {len(step.compute_s or ()), len(step.update_s or ())}
        if len(lengths) > 1:
            raise ValueError("a value for each device is needed")
        return self

    @property
    def span_s(self) -> tuple[float, float]:
        """When it began and ended, on the monotonic clock."""
        timings = self.timings + self.stamped
        began_s = min(timing.ended_s - timing.seconds for timing in timings)
        return began_s, max(timing.ended_s for timing in timings)

    def later(self, seconds: float) -> Window:
        """The same window, so many seconds later."""
        moved = {
            "timings": _later(self.timings, seconds),
            "stamped": _later(self.stamped, seconds),
        }
        return self.model_copy(update=moved)


class SimultaneousWindows(Record):
    """The windows of workloads that were measured at the same time; mostly it is only one.

    The journal has it as it is, under this class's name. `overlap_s` is for how long all were
    measured, `took_s` how long that took with all that came before the first step.
    """

    overlap_s: Seconds = 0.0
    took_s: Seconds = 0.0
    windows: Annotated[tuple[Window, ...], Field(min_length=1)]

    @property
    def span_s(self) -> tuple[float, float]:
        """When they began and ended, on the monotonic clock."""
        spans_s = [window.span_s for window in self.windows]
        return min(began_s for began_s, _ in spans_s), max(
            ended_s for _, ended_s in spans_s
        )

    def later(self, seconds: float) -> SimultaneousWindows:
        """The same windows, so many seconds later."""
        windows = tuple(window.later(seconds) for window in self.windows)
        return self.model_copy(update={"windows": windows})


def _later(timings: Sequence[Timing], seconds: float) -> tuple[Timing, ...]:
    moved = []
    for timing in timings:
        moved.append(timing.model_copy(update={"ended_s": timing.ended_s + seconds}))
    return tuple(moved)


def largest(*peaks: Peaks) -> Peaks:
    """The largest of these peaks for each device; those that are empty do not count."""
    by_device = zip(*filter(None, peaks), strict=True)
    return tuple(_largest_known(values) for values in by_device)


def _largest_known(peaks: Peaks) -> int | None:
    return max((peak for peak in peaks if peak is not None), default=None)


class Sensors:
    """All readings during a workload's windows; none of simulated devices and other hosts."""

    def __init__(self, devices: Sequence[Device] = ()) -> None:
        self.devices = tuple(devices)
        self._read = [(device, TelemetryRecorder()) for device in devices]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Reads every GPU while the block runs.

        After it this raises PartialResult if ECC counted uncorrected errors in a GPU's memory: what
        it did is no more than a partial result.
        """
        with ExitStack() as stack:
            for device, recorder in self._read:
                if device.is_local_gpu:
                    stack.enter_context(recorder.watching(device.uuid))
            yield
        for device, telemetry in zip(self.devices, self.telemetry(), strict=True):
            if telemetry is not None and telemetry.ecc_uncorrected:
                row = known_error("ecc-error")
                errors = f"{telemetry.ecc_uncorrected} memory errors that ECC did not correct"
                raise PartialResult(
                    f"{device.label} had {errors}: its results cannot be trusted",
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
