"""A device under probe: its curve, limit and speed, and the record of what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpubalance.devices.health import peak_flops
from gpubalance.errors import GpubalanceError
from gpubalance.jobs.probe.attempts import Attempts
from gpubalance.jobs.probe.curve import (
    Work,
    fill_curve,
    keeps_speed,
    measure_all_again,
    measure_slower_again,
    work_of_step,
)
from gpubalance.jobs.probe.limit import explore, plateau_of, search_limit
from gpubalance.jobs.probe.probe_worker import ProbeWorker
from gpubalance.planning.curve import best_of, sensible_of
from gpubalance.planning.model import (
    LINE_WITHIN,
    fit_line,
    measured_curve,
    slower_batches,
)
from gpubalance.planning.search import Limit
from gpubalance.results.common import Warning_
from gpubalance.results.probe import (
    BatchLimit,
    CurvePoint,
    DeviceProbe,
    Failure,
    SoloRate,
    StepTimeModel,
    times_of,
)
from gpubalance.settings.device import Device
from gpubalance.system.deadlines import within_or


@dataclass
class ProbedDevice:
    """A device that is probed on its `probe_worker`, and what was found of it so far.

    `number` is its place among the probe's devices. `device_probe` makes the record of it.
    """

    number: int
    probe_worker: ProbeWorker
    error: GpubalanceError | None = None
    # `ProbedDevices` sets the next three.
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
        self.attempts = Attempts(self.probe_worker)

    @property
    def device(self) -> Device:
        """The device itself."""
        return self.probe_worker.device

    @property
    def points(self) -> dict[int, CurvePoint]:
        """Its curve so far, by batch."""
        return self.attempts.points

    @property
    def errors(self) -> list[GpubalanceError]:
        """The error that ended its probe, if any, and the deaths of its workers."""
        deaths = self.probe_worker.deaths
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
        if self.limit.fails is None and self.plateau is None:
            self.plateau = plateau_of(attempts)  # at which the search ended
        if self.plateau is not None:
            self.max_batch = max(self.limit.fits or 0, *attempts.points)
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


def device_probe(probed: ProbedDevice) -> DeviceProbe:
    """The record of what was found so far."""
    curve = tuple(point for _, point in sorted(probed.points.items()))
    limit = batch_limit(probed)
    fitting = curve
    if limit is not None and limit.fits is not None:
        fitting = tuple(point for point in curve if point.batch <= limit.fits)
    model = None
    if len(fitting) > 1:
        model = fitted(times_of(fitting))
    best = None
    sensible = None
    if fitting:
        rates = [(point.batch, point.throughput.median) for point in fitting]
        best = solo_rate(best_of(rates))
        sensible = solo_rate(sensible_of(rates))
    work = probed.step_work or Work(step_flops=None)
    flops_per_s = None
    if work.step_flops and best is not None:
        flops_per_s = work.step_flops * best.throughput
    peak_flops_per_s = _peak_flops_per_s(probed)
    mfu = None
    if flops_per_s and peak_flops_per_s:
        mfu = flops_per_s / peak_flops_per_s
    failures = [Failure.of(error) for error in probed.errors]
    return DeviceProbe(
        device=probed.number,
        curve=curve,
        batch_limit=limit,
        step_time_model=model,
        update_s=work.update_s,
        solo_best=best,
        sensible=sensible,
        flops_per_sample=work.step_flops,
        flops_per_s=flops_per_s,
        peak_flops_per_s=peak_flops_per_s,
        mfu=mfu,
        samples_per_joule=_samples_per_joule(probed, best),
        with_xla=probed.with_xla,
        steady=probed.steady and all(point.steady for point in curve),
        on_line=probed.on_line,
        measured_s=probed.attempts.measured_s,
        elapsed_s=probed.elapsed_s,
        children=probed.probe_worker.worker_group.overhead.workers,
        overhead=probed.probe_worker.worker_group.overhead,
        failures=tuple(dict.fromkeys(failures)),
        complete=probed.ended and not probed.errors,
    )


def taken_over(probed: ProbedDevice, equal: ProbedDevice) -> DeviceProbe:
    """The record of a device that equals a probed one: no time was spent on it."""
    changes = {
        "device": probed.number,
        "same_as": equal.device.label,
        "measured_s": 0.0,
        "elapsed_s": 0.0,
        "children": 0,
        "overhead": None,
        "failures": (),
    }
    return device_probe(equal).model_copy(update=changes)


def batch_limit(probed: ProbedDevice) -> BatchLimit | None:
    """The record of a device's limit, None if that is not known yet."""
    limit = probed.limit
    if limit is None:
        return None
    trials = probed.attempts.trials
    # A real allocator reports what it held, not what it was asked for.
    needed_bytes = None
    if probed.device.profile is not None:
        for trial in trials:
            if trial.batch == limit.fails and trial.outcome != "fits":
                needed_bytes = trial.memory_peak_bytes
    return BatchLimit(
        fits=limit.fits,
        fails=limit.fails,
        max_batch=probed.max_batch,
        plateau=probed.plateau,
        memory_bytes=probed.probe_worker.usable_bytes,
        needed_bytes=needed_bytes,
        trials=tuple(trials),
    )


def fitted(times: Sequence[tuple[int, float, float]]) -> StepTimeModel:
    """The line through the points at two batches or more, and a curve if they are off it.

    A point is a batch, its seconds and half of their interval as a fraction. A batch that clearly
    takes longer than a larger one is off every line.
    """
    line = fit_line([(batch, time_s) for batch, time_s, _ in times])
    fields = {"alpha_s": line.alpha_s, "beta_s": line.beta_s, "residual": line.residual}
    if line.residual <= LINE_WITHIN and not slower_batches(times):
        return StepTimeModel(**fields, planned_with="line", curve=None)
    curve = measured_curve(times)
    points = tuple(zip(curve.batches, curve.step_times_s, strict=True))
    return StepTimeModel(**fields, planned_with="curve", curve=points)


def solo_rate(rate: tuple[int, float]) -> SoloRate:
    """The record of a batch and what it gives, in samples/s."""
    batch, throughput = rate
    return SoloRate(batch=batch, throughput=throughput)


def _peak_flops_per_s(probed: ProbedDevice) -> float | None:
    """What the device could do at most by its data sheet, None if it is not known."""
    if not probed.device.is_local_gpu:
        return None
    precision = probed.probe_worker.request.settings.precision
    return within_or(None, lambda: peak_flops(probed.device.uuid, precision))


def _samples_per_joule(probed: ProbedDevice, best: SoloRate | None) -> float | None:
    """At the best batch; None if its power was not read."""
    if best is None:
        return None
    telemetry = probed.points[best.batch].telemetry
    if telemetry is None:
        return None
    return telemetry.samples_per_joule(best.throughput)
