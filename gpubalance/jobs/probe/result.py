"""The record of what was found of a device, and the errors of devices that failed."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.devices.health import peak_flops
from gpubalance.errors import EnvironmentFault, GpubalanceError, NothingFits, PartialResult
from gpubalance.jobs.endings import one_error
from gpubalance.jobs.probe.alone import Alone
from gpubalance.numbers.units import format_bytes
from gpubalance.planning.curve import best_of, sensible_of
from gpubalance.planning.model import LINE_WITHIN, fit_line, monotone_curve
from gpubalance.results.probe import BatchLimit, DeviceProbe, Failure, SoloRate, StepTimeModel
from gpubalance.settings.device import Device
from gpubalance.system.deadlines import within_or


def device_probe(alone: Alone) -> DeviceProbe:
    """The record of what was found so far."""
    curve = tuple(point for _, point in sorted(alone.points.items()))
    limit = _batch_limit(alone)
    usable = [p for p in curve if limit is None or limit.fits is None or p.batch <= limit.fits]
    times = [(point.batch, point.step_time_s.median) for point in usable]
    rates = [(point.batch, point.throughput.median) for point in usable]
    best = best_of(rates) if rates else None
    telemetry = alone.points[best[0]].telemetry if best else None
    flops = alone.work and alone.work.step_flops
    achieved = flops * best[1] if flops and best else None
    device, precision = alone.device, alone.bench.request.settings.precision
    peak = None
    if device.told_by_nvml:
        peak = within_or(None, lambda: peak_flops(device.uuid, precision))
    return DeviceProbe(
        device=alone.number,
        curve=curve,
        batch_limit=limit,
        step_time_model=fitted(times) if len(times) > 1 else None,
        update_s=alone.work and alone.work.update_s,
        solo_best=_rate(best),
        sensible=_rate(sensible_of(rates)) if rates else None,
        flops_per_sample=flops,
        flops_per_s=achieved,
        peak_flops_per_s=peak,
        mfu=achieved / peak if achieved and peak else None,
        samples_per_joule=telemetry.samples_per_joule(best[1]) if telemetry and best else None,
        steady=alone.steady and all(point.steady for point in curve),
        on_line=alone.on_line,
        measured_s=alone.bench.measured_s,
        elapsed_s=alone.elapsed_s,
        children=alone.bench.party.started,
        failures=tuple(dict.fromkeys(map(Failure.of, alone.errors))),
        complete=alone.ended and not alone.errors,
    )


def taken_over(alone: Alone, equal: Alone) -> DeviceProbe:
    """The record of a device that equals a probed one: no time was spent on it."""
    whose = {"device": alone.number, "same_as": equal.device.label}
    spent_nothing = {"measured_s": 0.0, "elapsed_s": 0.0, "children": 0, "failures": ()}
    return device_probe(equal).model_copy(update={**whose, **spent_nothing})


def _rate(rate: tuple[int, float] | None) -> SoloRate | None:
    return SoloRate(batch=rate[0], throughput=rate[1]) if rate else None


def _batch_limit(alone: Alone) -> BatchLimit | None:
    limit = alone.limit
    if limit is None:
        return None
    failed = [t for t in alone.bench.trials if t.batch == limit.fails and t.outcome != "fits"]
    return BatchLimit(
        fits=limit.fits,
        fails=limit.fails,
        max_batch=alone.max_batch,
        memory_bytes=alone.bench.usable_bytes,
        # A real allocator reports what it held, not what it was asked for.
        needed_bytes=failed[-1].memory_peak_bytes if failed and alone.device.profile else None,
        trials=tuple(alone.bench.trials),
    )


def fitted(times: list[tuple[int, float]]) -> StepTimeModel:
    """The line through (batch, seconds) at two batches or more, and a curve if they are off it."""
    line = fit_line(times)
    curve = monotone_curve(times) if line.residual > LINE_WITHIN else None
    return StepTimeModel(
        alpha_s=line.alpha_s,
        beta_s=line.beta_s,
        residual=line.residual,
        planned_with="line" if curve is None else "curve",
        curve=tuple(zip(curve.batches, curve.step_times_s, strict=True)) if curve else None,
    )


def nothing_fits(alone: Alone) -> NothingFits | None:
    """The error of a device that does not hold a single sample, None if it does."""
    limit = _batch_limit(alone)
    if limit is None or limit.fits is not None:
        return None
    held = [trial.memory_peak_bytes for trial in limit.trials if trial.memory_peak_bytes]
    if limit.needed_bytes is not None:
        needs = f"it needs {format_bytes(limit.needed_bytes)}"
    elif held:
        needs = f"it held {format_bytes(held[-1])} when it asked for more"
    else:
        needs = "what it needs is not known"
    has = "an unknown number of bytes"
    if limit.memory_bytes is not None:
        has = format_bytes(limit.memory_bytes)
    model = alone.bench.request.settings.model
    return NothingFits(
        f"{alone.device.label} does not hold {model} with a batch of {limit.fails}: {needs}, "
        f"and {has} are free",
        remedy="use a smaller model, a lower --precision, or a device with more memory",
    )


def what_failed(devices: Sequence[Alone]) -> GpubalanceError | None:
    """One error for all devices' errors, None if there are none. Its exit code is the worst's."""
    errors: list[tuple[Device, GpubalanceError]] = []
    for alone in devices:
        errors += [(alone.device, error) for error in alone.errors]
    if not errors:
        return None
    worst: type[GpubalanceError] = PartialResult
    if all(isinstance(alone.error, EnvironmentFault) for alone in devices):
        worst = EnvironmentFault
    elif {type(error) for _, error in errors} == {NothingFits}:
        worst = NothingFits
    return one_error(worst, errors)
