"""Measurements in TensorBoard's terms: scalars over steps, and a row of hyperparameters for each split.

The tags are those of `training/monitor.py`, so that a training and the run before it share their charts. Below a
command's folder, each of TensorBoard's runs is one measured thing: `split`, `even`, `round-1`, `solo-GPU-0`,
`at-once-GPU-0`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gpubalance.numbers.stats import median
from gpubalance.results.common import StepTime
from gpubalance.results.independent import OwnWindow
from gpubalance.results.plan import Round
from gpubalance.results.probe import CurvePoint
from gpubalance.results.run import Measurement
from gpubalance.results.telemetry import Telemetry
from gpubalance.settings.device import Device
from gpubalance.settings.requests import Settings

_PREFIX = "gpubalance"
# The tag and title of each figure shown beside a split's hyperparameters.
METRICS = (
    (f"{_PREFIX}/median/samples_per_s", "samples/s"),
    (f"{_PREFIX}/median/step_time_s", "step time, s"),
    (f"{_PREFIX}/sync_s", "sync, s"),
    (f"{_PREFIX}/imbalance", "imbalance"),
)


class Scalar(NamedTuple):
    """A point of a chart. `wall_s` is seconds since 1970. Within a run and a tag, steps always rise."""

    run: str
    tag: str
    step: int
    wall_s: float
    value: float


class Tried(NamedTuple):
    """A split that is being tried: a row in TensorBoard's table of hyperparameters."""

    run: str
    began_s: float
    hparams: Mapping[str, str | float | bool]


class Ended(NamedTuple):
    """The end of a split. `fits` is false if it ran out of memory."""

    run: str
    ended_s: float
    fits: bool


Summary = Scalar | Tried | Ended


def columns(devices: Sequence[Device], settings: Settings) -> dict[str, type]:
    """The columns of the table of hyperparameters, each with its type: float, str or bool."""
    numbers = (*(f"batch/{device.label}" for device in devices), "global_batch")
    texts = ("batches", "micro_batches", "devices")
    same = {name: type(value) for name, value in settings.model_dump(exclude_none=True).items()}
    return {**dict.fromkeys(numbers, float), **dict.fromkeys(texts, str), **same}


class Summaries:
    """Turns what a command measures into summaries. A run's steps are its measured steps, counted from its first."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runs: dict[tuple[object, ...], str] = {}
        self._windows: dict[str, list[_Window]] = {}
        self._points: dict[str, dict[int, CurvePoint]] = {}

    def window(self, name: str, devices: Sequence[Device], measured: Measurement, now_s: float) -> list[Summary]:
        """The summaries of a window of the split (name "") or of the even split, which has just ended."""
        key = (name, measured.split)
        known, base = key in self._runs, name or "split"
        if not known:
            before = sum(one.split("-")[0] == base for one in self._runs.values())
            self._runs[key] = f"{base}-{before + 1}" if before else base
        run = self._runs[key]
        tried = [] if known else [self._tried(run, devices, measured, _began_s(measured.step_time_s, now_s))]
        return [*tried, *self._measured(run, devices, measured, now_s)]

    def own(self, name: str, part: OwnWindow, now_s: float) -> list[Summary]:
        """The summaries of a device's window with its own model, "alone" or "at once", which has just ended."""
        run = _solo(part.device) if name == "alone" else f"{name.replace(' ', '-')}-{_named(part.device)}"
        return self._of_device(run, part.device, part, now_s)

    def round(self, tried: Round, devices: Sequence[Device], now_s: float) -> list[Summary]:
        """The summaries of a split that `balance` has just tried, which may have run out of memory."""
        run, measured = f"round-{tried.number}", tried.measured
        if measured is None:
            return [self._tried(run, devices, tried, now_s), Ended(run, now_s, fits=False)]
        return [
            self._tried(run, devices, tried, _began_s(measured.step_time_s, now_s)),
            *self._measured(run, devices, measured, now_s),
            Ended(run, now_s, fits=True),
        ]

    def point(self, device: Device, point: CurvePoint, now_s: float) -> list[Summary]:
        """The summaries of a batch of a device alone, which was just measured."""
        run = _solo(device)
        self._points.setdefault(run, {})[point.batch] = point
        return self._of_device(run, device, point, now_s)

    def _of_device(self, run: str, device: Device, of: CurvePoint | OwnWindow, now_s: float) -> list[Summary]:
        window, label = self._window(run, of.step_time_s, now_s), device.label
        figures = {"batch": of.batch, "memory_bytes": of.memory_peak_bytes}
        return [
            *window.timings(of.batch, label),
            *window.figures(figures, label),
            *window.telemetry(of.telemetry, label),
        ]

    def solo_done(self, device: Device, now_s: float) -> list[Summary]:
        """The curve of a device whose probe has ended; its steps are batch sizes."""
        run = _solo(device)
        found: list[Summary] = []
        for batch, point in sorted(self._points.pop(run, {}).items()):
            figures = (
                ("samples_per_s", point.throughput.median),
                ("step_time_s", point.step_time_s.median),
                ("memory_bytes", point.memory_peak_bytes),
            )
            found += [Scalar(run, _tag(f"over_batch/{n}"), batch, now_s, v) for n, v in figures if v is not None]
        return found

    def done(self, now_s: float) -> list[Summary]:
        """The ends of all runs, as the command has ended."""
        return [Ended(run, now_s, fits=True) for run in self._runs.values()]

    def _tried(self, run: str, devices: Sequence[Device], split: Measurement | Round, began_s: float) -> Tried:
        hparams: dict[str, str | float | bool] = {
            f"batch/{device.label}": batch for device, batch in zip(devices, split.batches, strict=True)
        }
        hparams |= {
            "global_batch": sum(split.batches),
            "batches": "/".join(map(str, split.batches)),
            "micro_batches": "/".join(map(str, split.micro_batches)),
            "devices": " ".join(device.label for device in devices),
        }
        return Tried(run, began_s, hparams | self._settings.model_dump(exclude_none=True))

    def _window(self, run: str, times: StepTime, now_s: float) -> _Window:
        """The window of these step times; from now on they count among the run's steps."""
        windows = self._windows.setdefault(run, [])
        windows.append(_Window(run, windows[-1].last if windows else 0, times, now_s))
        return windows[-1]

    def _measured(self, run: str, devices: Sequence[Device], measured: Measurement, now_s: float) -> Iterator[Scalar]:
        window = self._window(run, measured.step_time_s, now_s)
        yield from window.timings(measured.global_batch)
        median_s = median([step_s for one in self._windows[run] for step_s in one.times.samples])
        figures = {
            "median/samples_per_s": measured.global_batch / median_s,
            "median/step_time_s": median_s,
            "sync_s": measured.sync_s,
            "imbalance": measured.imbalance,
        }
        if self._settings.input == "host" or self._settings.data:
            figures["input_wait_s"] = measured.input_wait_s
        yield from window.figures(figures)
        for replica in measured.replicas:
            label = devices[replica.device].label
            of_replica = {
                "samples_per_s": replica.throughput,
                "compute_s": replica.compute_s,
                "update_s": replica.update_s,
                "wait_s": replica.wait_s,
                "memory_bytes": replica.memory_peak_bytes,
            }
            yield from window.figures(of_replica, label)
            yield from window.telemetry(replica.telemetry, label)


_GAUGES = ("temperature_c", "power_w", "sm_clock_mhz", "memory_clock_mhz")


class _Window(NamedTuple):
    """Steps of a run that were just measured, after `before` earlier ones; the last ended at `now_s`."""

    run: str
    before: int
    times: StepTime
    now_s: float

    @property
    def last(self) -> int:
        return self.before + len(self.times.samples) * self.times.steps_per_sample

    def timings(self, samples: int, label: str | None = None) -> Iterator[Scalar]:
        """Each timing of steps with so many samples, at its end."""
        for number, (step_s, end_s) in enumerate(zip(self.times.samples, _ends_s(self.times, self.now_s), strict=True)):
            step = self.before + (number + 1) * self.times.steps_per_sample
            yield Scalar(self.run, _tag("samples_per_s", label), step, end_s, samples / step_s)
            yield Scalar(self.run, _tag("step_time_s", label), step, end_s, step_s)

    def figures(self, values: Mapping[str, float | None], label: str | None = None) -> Iterator[Scalar]:
        """Figures that hold for all these steps, at their end."""
        for name, value in values.items():
            if value is not None:
                yield Scalar(self.run, _tag(name, label), self.last, self.now_s, value)

    def telemetry(self, found: Telemetry | None, label: str) -> Iterator[Scalar]:
        """A GPU's course, with the last reading of each step, or its summary if there is no course."""
        if found is None:
            return
        course: dict[tuple[str, int], Scalar] = {}
        for reading in found.course:
            place = self._place(reading.at_s)
            for name in _GAUGES if place else ():
                value = getattr(reading, name)
                if place and value is not None:
                    course[name, place[0]] = Scalar(self.run, _tag(name, label), *place, value)
        yield from course.values() or self.figures({name: getattr(found, name) for name in _GAUGES}, label)

    def _place(self, at_s: float) -> tuple[int, float] | None:
        """How many steps were trained at a moment of the step times' clock, and its wall time.

        None for a moment before these steps: a GPU's readings continue from window to window.
        """
        ends, size = self.times.at_s, self.times.steps_per_sample
        if at_s < 0:
            return None
        number = bisect.bisect_right(ends, at_s)
        step = self.before + number * size
        if number < len(ends):
            left = (ends[number] - at_s) / self.times.samples[number]
            step += max(0, size - 1 - int(left))
        return max(self.before + 1, step), self.now_s - (ends[-1] - at_s)


def _tag(name: str, label: str | None = None) -> str:
    return f"{_PREFIX}/{name}" if label is None else f"{_PREFIX}/{name}/{label}"


def _solo(device: Device) -> str:
    return f"solo-{_named(device)}"


def _named(device: Device) -> str:
    return device.label.replace(":", "-")


def _ends_s(times: StepTime, now_s: float) -> list[float]:
    """When each timing ended, if the last one ended now."""
    return [now_s - (times.at_s[-1] - at_s) for at_s in times.at_s]


def _began_s(times: StepTime, now_s: float) -> float:
    return _ends_s(times, now_s)[0] - times.samples[0] * times.steps_per_sample
