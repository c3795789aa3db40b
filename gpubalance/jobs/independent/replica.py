"""One device that trains a model of its own: how it is measured, alone and at once with the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpubalance.errors import GpubalanceError
from gpubalance.jobs.endings import lost_gpus_told
from gpubalance.jobs.events import Watch
from gpubalance.jobs.independent.window import CommonWindow
from gpubalance.jobs.measure.length import Length
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.window import Window
from gpubalance.settings.device import Device
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import Ready
from gpubalance.workers.worker import Worker

ALONE: Literal["alone"] = "alone"
AT_ONCE: Literal["at once"] = "at once"


@dataclass
class Replica:
    """A device that trains its own model.

    `number` is its place in the request, `facts` what its worker reported of the model, `error` why it dropped out.
    With `pipeline` its batches come from a user's input pipeline of its own. `series` has what was measured of it.
    """

    number: int
    device: Device
    model: str
    batch: int
    watch: Watch
    pipeline: bool = False
    facts: Ready | None = None
    error: GpubalanceError | None = None

    def __post_init__(self) -> None:
        self.series: dict[str, Series] = {}
        self.begin(ALONE)
        self.begin(AT_ONCE)

    def begin(self, name: str) -> None:
        """Begins what is measured under that name, and forgets what was."""
        split = Shares((self.batch,))
        self.series[name] = Series(split, name=name, devices=(self.device,), watch=self.watch, pipeline=self.pipeline)

    def warm_up(self, worker: Worker) -> None:
        """Warms the model up and notes its facts. Raises what `Series.warm_up` does."""
        with lost_gpus_told([self.device]):
            self.facts = worker.facts
            self.series[ALONE].warm_up(worker, stamped=False)

    def measure_alone(self, worker: Worker, length: Length) -> Window:
        """Measures a window while no other device works. Raises what `Worker.measure` does, and for memory errors."""
        series = self.series[ALONE]
        with lost_gpus_told([self.device]):
            series.settle(worker, first=False)  # it has been idle for a while
            return series.plain_window(worker, length)

    def measure_at_once(self, worker: Worker, common: CommonWindow) -> None:
        """Measures until the window is over; ends it for all devices on any error. Raises as `measure_alone` does."""
        series, steps = self.series[AT_ONCE], self.series[ALONE].steps_per_timing(common.length.timing_s)
        try:
            with lost_gpus_told([self.device]), series.sensors.watching():
                for timing in series.measure(worker, steps_per_timing=steps, until=common.is_over):
                    common.take(self.number, timing, moves=series.sensors.move())
            series.sensors.check()
        except BaseException:
            common.leave()
            raise
