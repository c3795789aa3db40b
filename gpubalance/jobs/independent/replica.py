"""One device that trains a model of its own: how it is measured, alone and at once with the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpubalance.errors import GpubalanceError
from gpubalance.jobs.events import TimingDone, Watch
from gpubalance.jobs.independent.window import CommonWindow
from gpubalance.jobs.measure.length import Length
from gpubalance.jobs.measure.lost import lost_gpus_told
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.window import Window
from gpubalance.settings.device import Device
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import Measured, Ready
from gpubalance.workers.worker import Worker

ALONE: Literal["alone"] = "alone"
AT_ONCE: Literal["at once"] = "at once"


@dataclass
class Replica:
    """A device that trains its own model.

    `number` is its place in the request, `facts` what its worker reported of the model, `error` why it dropped out.
    With `pipeline` its batches come from a user's input pipeline of its own.
    """

    number: int
    device: Device
    model: str
    batch: int
    watch: Watch
    pipeline: bool = False
    facts: Ready | None = None
    error: GpubalanceError | None = None
    alone: Series = field(init=False)
    at_once: Series = field(init=False)

    def __post_init__(self) -> None:
        self.alone = self._series(ALONE)
        self.begin_again()

    def _series(self, name: str) -> Series:
        return Series(
            Shares((self.batch,)), name=name, devices=(self.device,), watch=self.watch, pipeline=self.pipeline
        )

    def begin_again(self) -> None:
        """Forgets what was measured at once, after one of the devices has dropped out."""
        self.at_once = self._series(AT_ONCE)

    def warm_up(self, worker: Worker) -> None:
        """Warms the model up and notes its facts. Raises what `Series.warm_up` does."""
        with lost_gpus_told([self.device]):
            self.facts = worker.facts
            self.alone.warm_up(worker, stamped=False)

    def measure_alone(self, worker: Worker, length: Length) -> Window:
        """Measures a window while no other device works. Raises what `Worker.measure` does, and for memory errors."""
        series = self.alone
        with lost_gpus_told([self.device]):
            series.settle(worker, first=False)  # it has been idle for a while
            return series.plain_window(worker, length)

    def measure_at_once(self, worker: Worker, window: CommonWindow, timing_s: float) -> Measured:
        """Measures until the window is over; ends it for all devices on any error. Raises as `measure_alone` does."""
        series, steps = self.at_once, self.alone.steps_per_timing(timing_s)
        measured = None
        try:
            with lost_gpus_told([self.device]), series.sensors.watching():
                for reply in worker.measure(
                    series.split, steps_per_timing=steps, until=window.is_over, pipeline=self.pipeline
                ):
                    if isinstance(reply, Measured):
                        measured = reply
                        continue
                    window.take(self.number, reply, moves=series.sensors.move())
                    step_s = reply.seconds / reply.steps
                    of = (self.device,), (self.batch,)
                    self.watch(TimingDone(AT_ONCE, *of, step_s, None, None, series.sensors.latest))
            series.sensors.check()
        except BaseException:
            window.leave()
            raise
        assert measured is not None  # noqa: S101  (`Worker.measure` ends with it)
        return measured

    def part_of(self, window: CommonWindow, measured: Measured) -> Window:
        """What counts of this device in a window at once."""
        return Window(
            timings=tuple(window.counted[self.number]),
            memory_peak_bytes=measured.memory_peak_bytes,
            throttled=self.at_once.throttled,
            late_part=measured.late_part or 0.0,
        )
