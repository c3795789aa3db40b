"""Measurements as TensorBoard's scalars over steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from gpubalance.results.common import StepTime
from gpubalance.results.timing import Telemetry

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
