"""Measurements in TensorBoard's terms: scalars over steps, and a row of hyperparameters for each
split.

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
from gpubalance.results.telemetry import Telemetry
from gpubalance.settings.device import Device
from gpubalance.settings.settings import Settings

_PREFIX = "gpubalance"
# The tag and title of each figure shown beside a split's hyperparameters.
_METRICS = (
    (f"{_PREFIX}/median/samples_per_s", "samples/s"),
    (f"{_PREFIX}/median/step_time_s", "step time, s"),
    (f"{_PREFIX}/sync_s", "sync, s"),
    (f"{_PREFIX}/imbalance", "imbalance"),
)
_TYPES = {int: "FLOAT64", float: "FLOAT64", str: "STRING", bool: "BOOL"}
# The tags of a record's figures, with the fields that they are in.
_OF_DEVICE = {"batch": "batch", "memory_bytes": "memory_peak_bytes"}
_OF_REPLICA = {
    "samples_per_s": "throughput",
    "compute_s": "compute_s",
    "update_s": "update_s",
    "wait_s": "wait_s",
    "memory_bytes": "memory_peak_bytes",
}
_GAUGES = {name: name for name in ("temperature_c", "power_w", "sm_clock_mhz", "memory_clock_mhz")}


# TensorBoard's run ("" for all of a command), seconds since 1970, a step, and TensorBoard's own
# record of what is told there. Within a run and a tag, steps always rise.
Summary = tuple[str, float, int, Any]


class Summaries:
    """Turns what a command measures into summaries. A run's steps are its measured steps, counted
    from its first.
    """

    def __init__(self, settings: Settings, group: str = "") -> None:
        """`group` is the command's folder, which leads the names of its rows."""
        self._settings, self._group = settings, group
        self._described = False
        self._runs: dict[tuple[object, ...], str] = {}
        self._windows: dict[str, list[_Window]] = defaultdict(list)
        self._points: dict[str, dict[int, CurvePoint]] = defaultdict(dict)

    def window(
        self, name: str, devices: Sequence[Device], measured: Measurement, now_s: float
    ) -> list[Summary]:
        """The summaries of a window of the split (name "") or of the even split, which has just
        ended.
        """
        key, base = (name, measured.split), name or "split"
        if key in self._runs:
            return [*self._measured(self._runs[key], devices, measured, now_s)]
        before = sum(one.split("-")[0] == base for one in self._runs.values())
        run = self._runs[key] = f"{base}-{before + 1}" if before else base
        return [*self._tried(run, devices, measured, measured, now_s)]

    def own(self, name: str, part: OwnWindow, now_s: float) -> list[Summary]:
        """The summaries of a device's window with its own model, "alone" or "at once", which has
        just ended.
        """
        run = _run("solo" if name == "alone" else name.replace(" ", "-"), part.device)
        return [*self._of_device(run, part.device, part, now_s)]

    def round(self, tried: Round, devices: Sequence[Device], now_s: float) -> list[Summary]:
        """The summaries of a split that `balance` has just tried, which may have run
        out of memory.
        """
        run, measured = f"round-{tried.number}", tried.measured
        return [
            *self._tried(run, devices, tried, measured, now_s),
            _end(run, now_s, fits=measured is not None),
        ]

    def point(self, device: Device, point: CurvePoint, now_s: float) -> list[Summary]:
        """The summaries of a batch of a device alone, which was just measured."""
        run = _run("solo", device)
        self._points[run][point.batch] = point
        return [*self._of_device(run, device, point, now_s)]

    def solo_done(self, device: Device, now_s: float) -> list[Summary]:
        """The curve of a device whose probe has ended; its steps are batch sizes."""
        run, found = _run("solo", device), list[Summary]()
        for batch, point in sorted(self._points.pop(run, {}).items()):
            figures = {
                "samples_per_s": point.throughput.median,
                "step_time_s": point.step_time_s.median,
                "memory_bytes": point.memory_peak_bytes,
            }
            known = {
                _tag(f"over_batch/{name}"): value
                for name, value in figures.items()
                if value is not None
            }
            found += [_scalar(run, now_s, batch, tag, value) for tag, value in known.items()]
        return found

    def done(self, now_s: float) -> list[Summary]:
        """The ends of all runs, as the command has ended."""
        return [_end(run, now_s, fits=True) for run in self._runs.values()]

    def _tried(
        self,
        run: str,
        devices: Sequence[Device],
        split: Measurement | Round,
        measured: Measurement | None,
        now_s: float,
    ) -> Iterator[Summary]:
        """The row of a split, and what its first window measured."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        hparams: dict[str, str | float | bool] = {
            **{
                f"batch/{device.label}": batch
                for device, batch in zip(devices, split.batches, strict=True)
            },
            "global_batch": sum(split.batches),
            "batches": "/".join(map(str, split.batches)),
            "micro_batches": "/".join(map(str, split.micro_batches)),
            "devices": " ".join(device.label for device in devices),
            **self._settings.model_dump(exclude_none=True),
        }
        began_s = now_s
        if measured is not None:
            times = measured.step_time_s
            began_s = _ends_s(times, now_s)[0] - times.samples[0] * times.steps_per_sample
        if not self._described:
            self._described = True
            yield _table(began_s, hparams)
        yield (
            run,
            began_s,
            0,
            hparams_pb(hparams, trial_id=f"{self._group}/{run}", start_time_secs=began_s),
        )
        if measured is not None:
            yield from self._measured(run, devices, measured, now_s)

    def _window(self, run: str, times: StepTime, now_s: float) -> _Window:
        """The window of these step times; from now on they count among the run's steps."""
        windows = self._windows[run]
        windows.append(_Window(run, windows[-1].last if windows else 0, times, now_s))
        return windows[-1]

    def _of_device(
        self, run: str, device: Device, of: CurvePoint | OwnWindow, now_s: float
    ) -> Iterator[Summary]:
        window = self._window(run, of.step_time_s, now_s)
        yield from window.timings(of.batch, device.label)
        yield from window.figures(of, _OF_DEVICE, device.label)
        yield from window.telemetry(of.telemetry, device.label)

    def _measured(
        self, run: str, devices: Sequence[Device], measured: Measurement, now_s: float
    ) -> Iterator[Summary]:
        window = self._window(run, measured.step_time_s, now_s)
        yield from window.timings(measured.global_batch)
        median_s = median([step_s for one in self._windows[run] for step_s in one.times.samples])
        yield window.figure("median/samples_per_s", measured.global_batch / median_s)
        yield window.figure("median/step_time_s", median_s)
        names = ["sync_s", "imbalance"]
        if self._settings.input == "host" or self._settings.data:
            names.append("input_wait_s")
        yield from window.figures(measured, dict(zip(names, names, strict=True)))
        for replica in measured.replicas:
            label = devices[replica.device].label
            yield from window.figures(replica, _OF_REPLICA, label)
            yield from window.telemetry(replica.telemetry, label)


class _Window(NamedTuple):
    """Steps of a run that were just measured, after `before` earlier ones; the last ended at
    `now_s`.
    """

    run: str
    before: int
    times: StepTime
    now_s: float

    @property
    def last(self) -> int:
        return self.before + len(self.times.samples) * self.times.steps_per_sample

    def timings(self, samples: int, label: str = "") -> Iterator[Summary]:
        """Each timing of steps with so many samples, at its end."""
        timed = zip(self.times.samples, _ends_s(self.times, self.now_s), strict=True)
        for number, (step_s, end_s) in enumerate(timed, 1):
            step = self.before + number * self.times.steps_per_sample
            yield _scalar(self.run, end_s, step, _tag("samples_per_s", label), samples / step_s)
            yield _scalar(self.run, end_s, step, _tag("step_time_s", label), step_s)

    def figure(self, name: str, value: float, label: str = "") -> Summary:
        """A figure that holds for all these steps, at their end."""
        return _scalar(self.run, self.now_s, self.last, _tag(name, label), value)

    def figures(self, of: Any, fields: Mapping[str, str], label: str = "") -> Iterator[Summary]:
        """Those of a record's figures that are known."""
        for name, field in fields.items():
            if (value := getattr(of, field)) is not None:
                yield self.figure(name, value, label)

    def telemetry(self, found: Telemetry | None, label: str) -> Iterator[Summary]:
        """A GPU's course, with the last reading of each step, or its summary if there is no course.

        A GPU's readings continue from window to window: those before these steps are left out.
        """
        if found is None:
            return
        course: dict[tuple[str, int], Summary] = {}
        for reading in (one for one in found.course if one.at_s >= 0):
            step, wall_s = (
                self._step_at(reading.at_s),
                self.now_s - (self.times.at_s[-1] - reading.at_s),
            )
            for name in _GAUGES:
                if (value := getattr(reading, name)) is not None:
                    course[name, step] = _scalar(self.run, wall_s, step, _tag(name, label), value)
        yield from course.values() or self.figures(found, _GAUGES, label)

    def _step_at(self, at_s: float) -> int:
        """The step that was trained at a moment of the step times' clock."""
        ends, size = self.times.at_s, self.times.steps_per_sample
        began_s = ends[0] - self.times.samples[0] * size
        done = np.interp(at_s, (began_s, *ends), range(0, len(ends) * size + 1, size))
        return self.before + max(1, int(done))


def _tag(name: str, label: str = "") -> str:
    return "/".join(filter(None, (_PREFIX, name, label)))


def _run(what: str, device: Device) -> str:
    return f"{what}-{device.label.replace(':', '-')}"


def _ends_s(times: StepTime, now_s: float) -> list[float]:
    """When each timing ended, if the last one ended now."""
    return [now_s - (times.at_s[-1] - at_s) for at_s in times.at_s]


def _scalar(run: str, wall_s: float, step: int, tag: str, value: float) -> Summary:
    from tensorboard.compat.proto.summary_pb2 import Summary as SummaryPb

    return run, wall_s, step, SummaryPb(value=[SummaryPb.Value(tag=tag, simple_value=value)])


def _end(run: str, ended_s: float, *, fits: bool) -> Summary:
    """The end of a split, which fails if it ran out of memory."""
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    status = api_pb2.STATUS_SUCCESS if fits else api_pb2.STATUS_FAILURE
    ended = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=ended_s)
    return run, ended_s, 0, _of_table(metadata.SESSION_END_INFO_TAG, session_end_info=ended)


def _table(began_s: float, hparams: Mapping[str, object]) -> Summary:
    """The table's columns and figures. TensorBoard takes them from one command of a folder, for all
    of them.
    """
    from tensorboard.plugins.hparams import api_pb2, metadata

    # TensorBoard first shows columns that differ: those of the split, not the settings that all
    # have.
    infos = [
        api_pb2.HParamInfo(
            name=name, type=f"DATA_TYPE_{_TYPES[type(value)]}", differs=name.startswith("batch")
        )
        for name, value in hparams.items()
    ]
    metrics = [
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=name)
        for tag, name in _METRICS
    ]
    table = api_pb2.Experiment(time_created_secs=began_s, hparam_infos=infos, metric_infos=metrics)
    return "", began_s, 0, _of_table(metadata.EXPERIMENT_TAG, experiment=table)


def _of_table(tag: str, **data: Any) -> Any:
    """The hparams plugin's data, which is in the metadata of an empty tensor."""
    from tensorboard.compat.proto.summary_pb2 import Summary as SummaryPb
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    told = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(**data))
    return SummaryPb(value=[SummaryPb.Value(tag=tag, metadata=told, tensor=metadata.NULL_TENSOR)])
