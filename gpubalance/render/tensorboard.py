"""What was measured, in TensorBoard's terms: scalars over steps, and each split tried as a row of hyperparameters.

Tags are those of `training/monitor.py`, so that a training and the run before it share their charts. Below the folder
of a command each of TensorBoard's runs is one thing that was measured: `split`, `even`, `round-1`, `solo-GPU-0`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gpubalance.numbers.stats import median
from gpubalance.results.common import StepTime
from gpubalance.results.plan import Round
from gpubalance.results.probe import CurvePoint
from gpubalance.results.run import Measurement, Replica
from gpubalance.results.telemetry import Telemetry
from gpubalance.settings.device import Device
from gpubalance.settings.requests import Settings

_PREFIX = "gpubalance"
# (tag, what it is called) of the figures of a split that stand beside its hyperparameters
METRICS = (
    (f"{_PREFIX}/median/samples_per_s", "samples/s"),
    (f"{_PREFIX}/median/step_time_s", "step time, s"),
    (f"{_PREFIX}/sync_s", "sync, s"),
    (f"{_PREFIX}/imbalance", "imbalance"),
)


class Scalar(NamedTuple):
    """A point of a chart. `wall_s` is seconds since 1970; of a run and a tag, each step comes once and they rise."""

    run: str
    tag: str
    step: int
    wall_s: float
    value: float


class Tried(NamedTuple):
    """A split that is tried: a row of TensorBoard's table of hyperparameters."""

    run: str
    began_s: float
    hparams: Mapping[str, str | float | bool]


class Ended(NamedTuple):
    """No more comes of that split. `fits` is false where it ran out of memory."""

    run: str
    ended_s: float
    fits: bool


Summary = Scalar | Tried | Ended


def columns(devices: Sequence[Device], settings: Settings) -> dict[str, type]:
    """The columns of that table for a command on these devices, and what is in them: float, str or bool."""
    numbers = (*(f"batch/{device.label}" for device in devices), "global_batch")
    texts = ("batches", "micro_batches", "devices")
    same = {name: type(value) for name, value in settings.model_dump().items()}
    return {**dict.fromkeys(numbers, float), **dict.fromkeys(texts, str), **same}


class Summaries:
    """Turns what a command measures into summaries. It counts the measured steps of each run, which are their steps."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runs: dict[tuple[object, ...], str] = {}
        self._steps: dict[str, int] = {}
        self._times_s: dict[str, list[float]] = {}
        self._points: dict[str, dict[int, CurvePoint]] = {}

    def window(self, name: str, devices: Sequence[Device], measured: Measurement, now_s: float) -> list[Summary]:
        """A window of the split (name "") or of the even split, which has just ended."""
        key = (name, measured.batches, measured.micro_batches)
        known = self._runs.get(key)
        base = name or "split"
        run = known or _numbered(base, sum(one.split("-")[0] == base for one in self._runs.values()))
        self._runs[key] = run
        found: list[Summary] = [*self._measured(run, devices, measured, now_s)]
        return found if known else [self._tried(run, devices, measured, _began_s(measured.step_time_s, now_s)), *found]

    def round(self, tried: Round, devices: Sequence[Device], now_s: float) -> list[Summary]:
        """A split that `balance` has just tried, which may have run out of memory."""
        run = f"round-{tried.number}"
        if tried.measured is None:
            return [self._tried(run, devices, tried, now_s), Ended(run, now_s, fits=False)]
        began_s = _began_s(tried.measured.step_time_s, now_s)
        return [
            self._tried(run, devices, tried, began_s),
            *self._measured(run, devices, tried.measured, now_s),
            Ended(run, now_s, fits=True),
        ]

    def point(self, device: Device, point: CurvePoint, now_s: float) -> list[Summary]:
        """A batch of a device alone, which was just measured."""
        run, label = _solo(device), device.label
        self._points.setdefault(run, {})[point.batch] = point
        before = self._steps.get(run, 0)
        found = list(self._samples(run, point.batch, point.step_time_s, now_s, label))
        step = self._steps[run]
        found.append(Scalar(run, _tag("batch", label), step, now_s, point.batch))
        if point.memory_peak_bytes is not None:
            found.append(Scalar(run, _tag("memory_bytes", label), step, now_s, point.memory_peak_bytes))
        found += _telemetry(run, label, point.telemetry, _Span(before, step, point.step_time_s, now_s))
        return [*found]

    def solo_done(self, device: Device, now_s: float) -> list[Summary]:
        """A device's probe has ended: its curve, whose steps are batch sizes."""
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
        """The command has ended."""
        return [Ended(run, now_s, fits=True) for run in self._runs.values()]

    def _tried(self, run: str, devices: Sequence[Device], split: Measurement | Round, began_s: float) -> Tried:
        by_device: dict[str, str | float | bool] = {
            f"batch/{device.label}": batch for device, batch in zip(devices, split.batches, strict=True)
        }
        same: dict[str, str | float | bool] = {
            "global_batch": sum(split.batches),
            "batches": "/".join(map(str, split.batches)),
            "micro_batches": "/".join(map(str, split.micro_batches)),
            "devices": " ".join(device.label for device in devices),
        }
        return Tried(run, began_s, {**by_device, **same, **self._settings.model_dump()})

    def _measured(self, run: str, devices: Sequence[Device], measured: Measurement, now_s: float) -> Iterator[Scalar]:
        before = self._steps.get(run, 0)
        yield from self._samples(run, measured.global_batch, measured.step_time_s, now_s)
        step = self._steps[run]
        median_s = median(self._times_s[run])
        figures = {
            "median/samples_per_s": measured.global_batch / median_s,
            "median/step_time_s": median_s,
            "sync_s": measured.sync_s,
            "imbalance": measured.imbalance,
        }
        if self._settings.input == "host":
            figures["input_wait_s"] = measured.input_wait_s
        for name, value in figures.items():
            yield Scalar(run, _tag(name), step, now_s, value)
        span = _Span(before, step, measured.step_time_s, now_s)
        for replica in measured.replicas:
            yield from _replica(run, devices[replica.device].label, replica, span)

    def _samples(
        self, run: str, samples: int, step_time: StepTime, now_s: float, label: str | None = None
    ) -> Iterator[Scalar]:
        """Each timed group of steps, at its end; and the run has trained so many steps more."""
        before = self._steps.get(run, 0)
        for number, (step_s, end_s) in enumerate(zip(step_time.samples, _ends_s(step_time, now_s), strict=True), 1):
            step = before + number * step_time.steps_per_sample
            yield Scalar(run, _tag("samples_per_s", label), step, end_s, samples / step_s)
            yield Scalar(run, _tag("step_time_s", label), step, end_s, step_s)
        self._steps[run] = before + len(step_time.samples) * step_time.steps_per_sample
        self._times_s.setdefault(run, []).extend(step_time.samples)


class _Span(NamedTuple):
    """Steps that were measured from `before` to `after`, and when the last of them ended."""

    before: int
    after: int
    step_time: StepTime
    now_s: float

    def at(self, at_s: float) -> tuple[int, float] | None:
        """The steps trained at a moment of the step time's own clock, and its wall time.

        None without such a clock, and for a moment before these steps: one GPU's readings go on from window to window.
        """
        ends, size = self.step_time.at_s, self.step_time.steps_per_sample
        if not ends or at_s < 0:
            return None
        number = bisect.bisect_right(ends, at_s)
        step = self.before + number * size
        if number < len(ends):
            left = (ends[number] - at_s) / self.step_time.samples[number]
            step += max(0, size - 1 - int(left))
        return max(self.before + 1, step), self.now_s - (ends[-1] - at_s)


def _replica(run: str, label: str, replica: Replica, span: _Span) -> Iterator[Scalar]:
    figures = {
        "samples_per_s": replica.throughput,
        "compute_s": replica.compute_s,
        "wait_s": replica.wait_s,
        "memory_bytes": replica.memory_peak_bytes,
    }
    for name, value in figures.items():
        if value is not None:
            yield Scalar(run, _tag(name, label), span.after, span.now_s, value)
    yield from _telemetry(run, label, replica.telemetry, span)


_GAUGES = ("temperature_c", "power_w", "sm_clock_mhz", "memory_clock_mhz")


def _telemetry(run: str, label: str, telemetry: Telemetry | None, span: _Span) -> list[Scalar]:
    """Its course; where that is not known, its summary at the end. Of several readings in one step the last."""
    if telemetry is None:
        return []
    found: dict[tuple[str, int], Scalar] = {}
    for reading in telemetry.course:
        place = span.at(reading.at_s)
        for name in _GAUGES if place else ():
            value = getattr(reading, name)
            if place and value is not None:
                found[name, place[0]] = Scalar(run, _tag(name, label), *place, value)
    if found:
        return list(found.values())
    values = {name: getattr(telemetry, name) for name in _GAUGES}
    return [Scalar(run, _tag(n, label), span.after, span.now_s, v) for n, v in values.items() if v is not None]


def _tag(name: str, label: str | None = None) -> str:
    return f"{_PREFIX}/{name}" if label is None else f"{_PREFIX}/{name}/{label}"


def _solo(device: Device) -> str:
    return f"solo-{device.label.replace(':', '-')}"


def _numbered(name: str, before: int) -> str:
    return name if not before else f"{name}-{before + 1}"


def _ends_s(step_time: StepTime, now_s: float) -> list[float]:
    """When each sample ended, if the last one did now."""
    if step_time.at_s:
        return [now_s - (step_time.at_s[-1] - at_s) for at_s in step_time.at_s]
    ends = [now_s]
    for step_s in reversed(step_time.samples[1:]):
        ends.append(ends[-1] - step_s * step_time.steps_per_sample)
    return ends[::-1]


def _began_s(step_time: StepTime, now_s: float) -> float:
    return _ends_s(step_time, now_s)[0] - step_time.samples[0] * step_time.steps_per_sample
