"""A device under probe: its curve, its batch limit, and whether it kept its speed."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpubalance.errors import GpubalanceError
from gpubalance.jobs.probe.attempts import Attempts
from gpubalance.jobs.probe.bench import Bench
from gpubalance.jobs.probe.curve import fill_curve
from gpubalance.jobs.probe.limit import explore, search_limit
from gpubalance.jobs.probe.slower import measure_slower_again
from gpubalance.jobs.probe.speed import keeps_speed, measure_all_again
from gpubalance.jobs.probe.work import Work, work_of_step
from gpubalance.planning.search import Limit
from gpubalance.results.common import Warning_
from gpubalance.results.probe import CurvePoint
from gpubalance.settings.device import Device


@dataclass
class ProbedDevice:
    """A device that is probed on its `bench`, and what was found of it so far.

    `number` is its place among the probe's devices. device_probe.py makes the record of it.
    """

    number: int
    bench: Bench
    error: GpubalanceError | None = None
    # The next three are set by course.py.
    began: bool = False
    ended: bool = False
    elapsed_s: float = 0.0
    max_batch: int = 0  # a limit is looked for up to this
    plateau: int | None = (
        None  # from here on throughput does not rise, so none is looked for
    )
    limit: Limit | None = None
    step_work: Work | None = None  # FLOPs of a sample, seconds of an update
    steady: bool = True
    # Whether its step times lie on a line; None without a point.
    on_line: bool | None = None
    with_xla: CurvePoint | None = None  # at its best batch, if it is the best device
    trace_warnings: list[Warning_] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.attempts = Attempts(self.bench)

    @property
    def device(self) -> Device:
        """The device itself."""
        return self.bench.device

    @property
    def points(self) -> dict[int, CurvePoint]:
        """Its curve so far, by batch."""
        return self.attempts.points

    @property
    def errors(self) -> list[GpubalanceError]:
        """The error that ended its probe, if any, and the deaths of its workers."""
        deaths = self.bench.deaths
        if self.error is None or self.error in deaths:
            return deaths
        return [self.error, *deaths]

    @property
    def largest(self) -> int:
        """The largest batch known to train; 0 if none does."""
        if self.limit is None:
            return max(self.points, default=0)
        return self.limit.fits or 0

    def probe(self) -> None:
        """Measures the device; what was found before an error stays.

        Raises as `Attempts.try_batch` does.
        """
        attempts = self.attempts
        explored = explore(attempts)
        self.max_batch = explored.max_batch
        self.plateau = explored.plateau
        self.step_work = work_of_step(attempts)
        self.limit = search_limit(attempts, explored)
        # Nothing trains: what looked like a lack of memory was this fault.
        if self.limit.fits is None and attempts.fault is not None:
            raise attempts.fault
        measure_slower_again(attempts)
        self.on_line = fill_curve(attempts, self.limit)
        measure_slower_again(attempts)
        if self.step_work is None:
            # It takes a worker that lives, and there was none if all points came from the journal.
            self.step_work = work_of_step(attempts)
        self.steady = keeps_speed(attempts)
        if not self.steady:
            measure_all_again(attempts)
