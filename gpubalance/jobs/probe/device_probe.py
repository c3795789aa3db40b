"""The record of what was found of a device."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.devices.health import peak_flops
from gpubalance.jobs.probe.probed_device import ProbedDevice
from gpubalance.jobs.probe.work import Work
from gpubalance.planning.curve import best_of, sensible_of
from gpubalance.planning.model import (
    LINE_WITHIN,
    fit_line,
    measured_curve,
    slower_batches,
)
from gpubalance.results.probe import (
    BatchLimit,
    DeviceProbe,
    Failure,
    SoloRate,
    StepTimeModel,
    times_of,
)
from gpubalance.system.deadlines import within_or


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
        children=probed.bench.party.overhead.workers,
        overhead=probed.bench.party.overhead,
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
        memory_bytes=probed.bench.usable_bytes,
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
    if not probed.device.told_by_nvml:
        return None
    precision = probed.bench.request.settings.precision
    return within_or(None, lambda: peak_flops(probed.device.uuid, precision))


def _samples_per_joule(probed: ProbedDevice, best: SoloRate | None) -> float | None:
    """At the best batch; None if its power was not read."""
    if best is None:
        return None
    telemetry = probed.points[best.batch].telemetry
    if telemetry is None:
        return None
    return telemetry.samples_per_joule(best.throughput)
