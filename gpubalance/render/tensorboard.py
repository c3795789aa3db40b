"""Measurements for TensorBoard: scalars over steps, and a row of hyperparameters a split.

The tags are those of `training/monitor.py`, so that a training and the run before it share their
charts. Below a command's folder, each of TensorBoard's runs is one measured thing: `split`, `even`,
`round-1`, `solo-GPU-0`, `at-once-GPU-0`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpubalance.numbers.stats import median
from gpubalance.results.common import StepTime
from gpubalance.results.independent import OwnWindow
from gpubalance.results.plan import Round
from gpubalance.results.probe import CurvePoint
from gpubalance.results.run import Measurement
from gpubalance.results.timing import Telemetry
from gpubalance.settings.device import Device
from gpubalance.settings.settings import Settings

PREFIX = "gpubalance"
_READINGS = ("temperature_c", "power_w", "sm_clock_mhz", "memory_clock_mhz")
_GAUGES = {name: name for name in _READINGS}

# TensorBoard's run ("" for all of a command), seconds since 1970, a step, and TensorBoard's own
# record of what is said there. Within a run and a tag, steps always rise.
Summary = tuple[str, float, int, Any]


class RunWindow(NamedTuple):
    """Steps of a run that were just measured, after `before` others; the last ended at `now_s`."""

    run: str
    before: int
    times: StepTime
    now_s: float

    @property
    def last(self) -> int:
        """The number of its last step."""
        return self.before + len(self.times.samples) * self.times.steps_per_sample

    @property
    def began_s(self) -> float:
        """When its first step began."""
        first_s = self.times.samples[0] * self.times.steps_per_sample
        return self._wall_s(self.times.at_s[0]) - first_s

    def timings(self, samples: int, label: str = "") -> Iterator[Summary]:
        """Each timing of steps with so many samples, at its end."""
        step = self.before
        for step_s, at_s in zip(self.times.samples, self.times.at_s, strict=True):
            step += self.times.steps_per_sample
            end_s = self._wall_s(at_s)
            yield scalar(
                self.run, end_s, step, _tag("samples_per_s", label), samples / step_s
            )
            yield scalar(self.run, end_s, step, _tag("step_time_s", label), step_s)

    def figure(self, name: str, value: float, label: str = "") -> Summary:
        """A figure that holds for all these steps, at their end."""
        return scalar(self.run, self.now_s, self.last, _tag(name, label), value)

    def figures(
        self, record: Any, fields: Mapping[str, str], label: str = ""
    ) -> Iterator[Summary]:
        """Those of a record's figures that are known."""
        for name, field in fields.items():
            value = getattr(record, field)
            if value is not None:
                yield self.figure(name, value, label)

    def telemetry(self, telemetry: Telemetry | None, label: str) -> Iterator[Summary]:
        """A GPU's course, with the last reading of each step, or its summary if there is no course.

        A GPU's readings continue from window to window: those before these steps are left out.
        """
        if telemetry is None:
            return
        course: dict[tuple[str, int], Summary] = {}
        for reading in telemetry.course:
            if reading.at_s < 0:
                continue
            step = self._step_at(reading.at_s)
            wall_s = self._wall_s(reading.at_s)
            for name in _GAUGES:
                value = getattr(reading, name)
                if value is not None:
                    course[name, step] = scalar(
                        self.run, wall_s, step, _tag(name, label), value
                    )
        yield from course.values() or self.figures(telemetry, _GAUGES, label)

    def _wall_s(self, at_s: float) -> float:
        """A moment of the step times' clock, in seconds since 1970."""
        return self.now_s - (self.times.at_s[-1] - at_s)

    def _step_at(self, at_s: float) -> int:
        """The step that was trained at a moment of the step times' clock."""
        ends = self.times.at_s
        size = self.times.steps_per_sample
        began_s = ends[0] - self.times.samples[0] * size
        done = np.interp(at_s, (began_s, *ends), range(0, len(ends) * size + 1, size))
        return self.before + max(1, int(done))


def scalar(run: str, wall_s: float, step: int, tag: str, value: float) -> Summary:
    """One point of a chart."""
    from tensorboard.compat.proto.summary_pb2 import Summary as SummaryPb

    return (
        run,
        wall_s,
        step,
        SummaryPb(value=[SummaryPb.Value(tag=tag, simple_value=value)]),
    )


def _tag(name: str, label: str) -> str:
    tag = f"{PREFIX}/{name}"
    if label:
        tag += f"/{label}"
    return tag


# The tags of a record's figures, with the fields that they are in.
_OF_DEVICE = {"batch": "batch", "memory_bytes": "memory_peak_bytes"}
_OF_SPLIT = {"sync_s": "sync_s", "imbalance": "imbalance"}
_OF_REPLICA = {
    "samples_per_s": "throughput",
    "compute_s": "compute_s",
    "update_s": "update_s",
    "wait_s": "wait_s",
    "memory_bytes": "memory_peak_bytes",
}
# The tag and title of each figure shown beside a split's hyperparameters.
_METRICS = {
    f"{PREFIX}/median/samples_per_s": "samples/s",
    f"{PREFIX}/median/step_time_s": "step time, s",
    f"{PREFIX}/sync_s": "sync, s",
    f"{PREFIX}/imbalance": "imbalance",
}
_TYPES = {int: "FLOAT64", float: "FLOAT64", str: "STRING", bool: "BOOL"}


class Summaries:
    """Turns what a command measures into summaries, whose steps are a run's measured steps."""

    def __init__(self, settings: Settings, group: str = "") -> None:
        """`group` is the command's folder, which leads the names of its rows."""
        self._settings = settings
        self._group = group
        self._has_columns = False
        self._runs: dict[tuple[object, ...], str] = {}
        self._windows: dict[str, list[RunWindow]] = defaultdict(list)
        self._points: dict[str, dict[int, CurvePoint]] = defaultdict(dict)

    def window(
        self, name: str, devices: Sequence[Device], measured: Measurement, now_s: float
    ) -> list[Summary]:
        """A window of the split (name "") or of the even split, which has just ended."""
        key = (name, measured.split)
        if key in self._runs:
            window = self._window(self._runs[key], measured.step_time_s, now_s)
            return list(self._measured(window, devices, measured))
        run = base = name or "split"
        before = sum(earlier.split("-")[0] == base for earlier in self._runs.values())
        if before:
            run = f"{base}-{before + 1}"
        self._runs[key] = run
        return list(self._tried(run, devices, measured, now_s))

    def own(self, name: str, part: OwnWindow, now_s: float) -> list[Summary]:
        """A device's window with its own model, "alone" or "at once", which has just ended."""
        what = "at-once"
        if name == "alone":
            what = "solo"
        run = _run(what, part.device)
        return list(self._of_device(run, part.device, part, now_s))

    def round(
        self, tried: Round, devices: Sequence[Device], now_s: float
    ) -> list[Summary]:
        """A split that `balance` has just tried, which may have run out of memory."""
        run = f"round-{tried.number}"
        summaries = list(self._tried(run, devices, tried, now_s))
        summaries.append(row_ended(run, now_s, fits=tried.measured is not None))
        return summaries

    def point(self, device: Device, point: CurvePoint, now_s: float) -> list[Summary]:
        """A batch of a device alone, which was just measured."""
        run = _run("solo", device)
        self._points[run][point.batch] = point
        return list(self._of_device(run, device, point, now_s))

    def solo_done(self, device: Device, now_s: float) -> list[Summary]:
        """The curve of a device whose probe has ended; its steps are batch sizes."""
        run = _run("solo", device)
        summaries = []
        for batch, point in sorted(self._points.pop(run, {}).items()):
            figures = {
                "samples_per_s": point.throughput.median,
                "step_time_s": point.step_time_s.median,
                "memory_bytes": point.memory_peak_bytes,
            }
            for name, value in figures.items():
                if value is not None:
                    tag = f"{PREFIX}/over_batch/{name}"
                    summaries.append(scalar(run, now_s, batch, tag, value))
        return summaries

    def done(self, now_s: float) -> list[Summary]:
        """The ends of all runs, as the command has ended."""
        return [row_ended(run, now_s, fits=True) for run in self._runs.values()]

    def _tried(
        self,
        run: str,
        devices: Sequence[Device],
        split: Measurement | Round,
        now_s: float,
    ) -> Iterator[Summary]:
        """The row of a split, and what its first window measured."""
        hparams = self._hparams(devices, split)
        measured = split.measured if isinstance(split, Round) else split
        if measured is None:
            yield from self._row(run, now_s, hparams)
            return
        window = self._window(run, measured.step_time_s, now_s)
        yield from self._row(run, window.began_s, hparams)
        yield from self._measured(window, devices, measured)

    def _row(self, run: str, began_s: float, hparams: HParams) -> Iterator[Summary]:
        if not self._has_columns:
            self._has_columns = True
            yield columns(began_s, hparams)
        yield row_begun(run, began_s, hparams, self._group)

    def _hparams(
        self, devices: Sequence[Device], split: Measurement | Round
    ) -> HParams:
        hparams: dict[str, str | float | bool] = {}
        for device, batch in zip(devices, split.batches, strict=True):
            hparams[f"batch/{device.label}"] = batch
        hparams["global_batch"] = sum(split.batches)
        hparams["batches"] = "/".join(map(str, split.batches))
        hparams["micro_batches"] = "/".join(map(str, split.micro_batches))
        hparams["devices"] = " ".join(device.label for device in devices)
        return hparams | self._settings.model_dump(exclude_none=True)

    def _window(self, run: str, times: StepTime, now_s: float) -> RunWindow:
        """The window of these step times; from now on they count among the run's steps."""
        windows = self._windows[run]
        before = 0
        if windows:
            before = windows[-1].last
        windows.append(RunWindow(run, before, times, now_s))
        return windows[-1]

    def _of_device(
        self, run: str, device: Device, measured: CurvePoint | OwnWindow, now_s: float
    ) -> Iterator[Summary]:
        window = self._window(run, measured.step_time_s, now_s)
        yield from window.timings(measured.batch, device.label)
        yield from window.figures(measured, _OF_DEVICE, device.label)
        yield from window.telemetry(measured.telemetry, device.label)

    def _measured(
        self, window: RunWindow, devices: Sequence[Device], measured: Measurement
    ) -> Iterator[Summary]:
        yield from window.timings(measured.global_batch)
        times_s: list[float] = []
        for earlier in self._windows[window.run]:
            times_s += earlier.times.samples
        median_s = median(times_s)
        yield window.figure("median/samples_per_s", measured.global_batch / median_s)
        yield window.figure("median/step_time_s", median_s)
        yield from window.figures(measured, _OF_SPLIT)
        if self._settings.input == "host" or self._settings.data:
            yield window.figure("input_wait_s", measured.input_wait_s)
        for replica in measured.replicas:
            label = devices[replica.device].label
            yield from window.figures(replica, _OF_REPLICA, label)
            yield from window.telemetry(replica.telemetry, label)


def _run(what: str, device: Device) -> str:
    return f"{what}-{device.label.replace(':', '-')}"


HParams = Mapping[str, str | float | bool]


def row_begun(run: str, began_s: float, hparams: HParams, group: str) -> Summary:
    """The row of a split that is tried."""
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    row = hparams_pb(hparams, trial_id=f"{group}/{run}", start_time_secs=began_s)
    return run, began_s, 0, row


def row_ended(run: str, ended_s: float, *, fits: bool) -> Summary:
    """The end of a split, which fails if it ran out of memory."""
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    status = api_pb2.STATUS_SUCCESS if fits else api_pb2.STATUS_FAILURE
    ended = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=ended_s)
    summary = _with_metadata(metadata.SESSION_END_INFO_TAG, session_end_info=ended)
    return run, ended_s, 0, summary


def columns(began_s: float, hparams: HParams) -> Summary:
    """The table's columns and figures, which TensorBoard takes from one command for a folder."""
    from tensorboard.plugins.hparams import api_pb2, metadata

    table = api_pb2.Experiment(time_created_secs=began_s)
    for name, value in hparams.items():
        # TensorBoard first shows columns that differ: those of the split, not the settings that
        # all have.
        differs = name.startswith("batch")
        data_type = f"DATA_TYPE_{_TYPES[type(value)]}"
        table.hparam_infos.append(
            api_pb2.HParamInfo(name=name, type=data_type, differs=differs)
        )
    for tag, title in _METRICS.items():
        name = api_pb2.MetricName(tag=tag)
        table.metric_infos.append(api_pb2.MetricInfo(name=name, display_name=title))
    return "", began_s, 0, _with_metadata(metadata.EXPERIMENT_TAG, experiment=table)


def _with_metadata(tag: str, **data: Any) -> Any:
    """The hparams plugin's data, which is in the metadata of an empty tensor."""
    from tensorboard.compat.proto.summary_pb2 import Summary as SummaryPb
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    plugin_data = plugin_data_pb2.HParamsPluginData(**data)
    content = metadata.create_summary_metadata(plugin_data)
    value = SummaryPb.Value(tag=tag, metadata=content, tensor=metadata.NULL_TENSOR)
    return SummaryPb(value=[value])
