"""Measures a cut model: warm-up, and windows of timings and of stamped steps."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gpubalance.errors import BadInput
from gpubalance.jobs.layers.kept import PipeWindow
from gpubalance.jobs.layers.known import Planned
from gpubalance.jobs.measure.length import Length
from gpubalance.jobs.measure.sensors import Sensors
from gpubalance.jobs.measure.series import STAMPED_PART, STAMPED_STEPS
from gpubalance.jobs.measure.timings import Timings
from gpubalance.numbers.stats import median
from gpubalance.numbers.steady import has_trend
from gpubalance.planning.pipeline.timeline import Timeline
from gpubalance.results.piped import Piped
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device
from gpubalance.settings.shares import Shares
from gpubalance.workers.layers import describe, pipe
from gpubalance.workers.messages import Measured
from gpubalance.workers.worker import Worker

_LEAST, _MOST = 3, 30  # steps of a warm-up
_TREND_OF = 10
_FOR_AN_INTERVAL = 3
_LONGEST_S = 60.0


@dataclass
class PipeSeries:
    """The steps of one cut: a worker adds to them. `timings` are of steps without stamps, `timelines` of stamped ones.

    `cuts` has the layers at which blocks begin, if the user named them.
    """

    planned: Planned
    devices: tuple[Device, ...]
    cuts: tuple[str, ...] = ()
    warmup_steps: int = 0
    steady: bool = True
    timelines: list[Timeline] = field(default_factory=list)

    def __post_init__(self) -> None:
        problem = self.planned.problem
        split = Shares((problem.micro_batch * problem.micro_batches,), (problem.micro_batch,))
        self.timings = Timings(split, Sensors(self.devices))
        self._step_s = 0.0

    @property
    def windows(self) -> int:
        """How many were measured."""
        return self.timings.windows

    @property
    def step_time_s(self) -> float:
        """The median of the timings."""
        return median(self.timings.step_times_s)

    @property
    def precision(self) -> float:
        """Half the 95 % interval of the step time as a part of it."""
        return self.timings.precision

    @property
    def usual(self) -> Timeline:
        """The stamped step with the middle time."""
        return sorted(self.timelines, key=lambda one: one.step_time_s)[(len(self.timelines) - 1) // 2]

    @property
    def stamp_cost(self) -> float:
        """The part by which a usual stamped step takes longer than one without stamps."""
        return median([one.step_time_s for one in self.timelines]) / self.step_time_s - 1

    def warm_up(self, worker: Worker) -> None:
        """Trains until steps no longer get faster, unless these segments have run last in this process.

        Raises OutOfMemory, and BadInput for a loss that is no number.
        """
        key = self.planned.placement.segments, self.planned.problem.micro_batch
        if key in worker.warm_pipeline:
            self.warmup_steps = worker.warm_pipeline[key]
            return
        worker.warm_pipeline.clear()
        end, times = time.monotonic() + _LONGEST_S, list[float]()
        if self.cuts:  # without them every worker finds the same blocks
            describe(worker, self.cuts)
        first, _, _ = self._measure(worker, at_least=1)
        if not all(one.loss_is_finite for one in first):
            raise BadInput(
                "the model's loss is not a number at the first step",
                remedy="inputs are random numbers from 0 to 1, labels fit the output: does the model take them?",
            )
        self.warmup_steps += 1
        while len(times) < _LEAST or (times[-1] < 0.95 * times[-2]) or has_trend(times[-_TREND_OF:]):
            if len(times) >= _MOST or time.monotonic() > end:
                self.steady = False
                break
            times += [one.seconds / one.steps for one in self._measure(worker, at_least=1)[0]]
        self.warmup_steps += len(times)
        self._step_s = times[-1]
        worker.warm_pipeline[key] = self.warmup_steps

    def window(self, worker: Worker, length: Length) -> PipeWindow:
        """Measures a window of that length, with some stamped steps first; adds it to the series, and returns it."""
        sensors, timings = self.timings.sensors, list[Timing]()
        with sensors.watching():
            _, stamped, _ = self._measure(worker, STAMPED_PART * length.least_s, at_least=STAMPED_STEPS, stamped=True)
            at_least = max(min(length.at_least, _FOR_AN_INTERVAL), length.at_least - len(stamped))
            length, seconds = length._replace(at_least=at_least), (1 - STAMPED_PART) * length.least_s
            self._step_s = self._step_s or median([one.step_time_s for one in stamped])
            while not timings or not length.is_reached(timings, moves=sensors.move()):
                steps = max(1, round(length.timing_s / self._step_s))
                more, _, measured = self._measure(worker, seconds, at_least=at_least, steps=steps)
                timings += more
                seconds, at_least = 0.0, max(1, len(timings) // 4)
        sensors.check()
        window = PipeWindow(
            timings=tuple(timings),
            timelines=tuple(stamped),
            memory_peak_bytes=self.timings.memory_peak_bytes,
            throttled=self.timings.throttled,
            late_part=measured.late_part or 0.0,
        )
        self.add(window)
        return window

    def add(self, window: PipeWindow) -> None:
        """Adds a window that was measured now or before the command was interrupted."""
        self.timelines += window.timelines
        self.timings.add(window)

    def _measure(
        self, worker: Worker, seconds: float = 0.0, *, at_least: int, steps: int = 1, stamped: bool = False
    ) -> tuple[list[Timing], list[Timeline], Measured]:
        placed, problem = self.planned.placement, self.planned.problem
        timings, timelines = list[Timing](), list[Timeline]()
        for reply in pipe(
            worker,
            placed.segments,
            placed.orders,
            problem.micro_batch,
            problem.micro_batches,
            seconds=seconds,
            at_least=at_least,
            steps_per_timing=steps,
            stamped=stamped,
        ):
            if isinstance(reply, Timing):
                timings.append(reply)
            elif isinstance(reply, Piped):
                timelines.append(reply.timeline)
            else:
                measured = reply  # the last reply
                self.timings.note_peaks(measured.memory_peak_bytes)
        return timings, timelines, measured
