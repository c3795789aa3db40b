"""The result of a probe, with its warnings, or the error that says what failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.devices.machine import environment
from gpubalance.errors import (
    EnvironmentFault,
    GpubalanceError,
    NothingFits,
    PartialResult,
)
from gpubalance.jobs.endings import one_error
from gpubalance.jobs.measure.warnings import LATE, telemetry_ended, to_keep_speed
from gpubalance.jobs.probe.curve import slower_warnings
from gpubalance.jobs.probe.devices import ProbedDevices
from gpubalance.jobs.probe.probed_device import ProbedDevice, batch_limit
from gpubalance.numbers.units import format_bytes
from gpubalance.results.common import Warning_, now
from gpubalance.results.probe import CurvePoint, Probe
from gpubalance.results.timing import passing
from gpubalance.results.warnings import warning
from gpubalance.settings.device import Device
from gpubalance.settings.requests import ProbeRequest
from gpubalance.workers.messages import Ready

_FEW = 4


def result_so_far(devices: ProbedDevices) -> Probe | None:
    """The result of what was measured so far; None before the first point."""
    if any(probed.points or probed.ended for probed in devices.all):
        return result_of(devices)
    return None


def result_of(devices: ProbedDevices) -> Probe:
    """The result with what was found of each device."""
    request = devices.request
    records = devices.records()
    facts = facts_of(devices)
    own_batch = None
    own_batch_stays = False
    samples = None
    software = None
    model = None
    if facts is not None:
        own_batch = facts.own_batch
        own_batch_stays = facts.own_batch_stays
        samples = facts.samples
        software = environment(request.driver)
        model = facts.model
    is_whole = len(records) == len(devices.all)
    warnings = [
        *probe_warnings(request, devices.all, facts),
        *devices.pipeline_warnings,
    ]
    return Probe(
        created=now(),
        settings=request.settings,
        code=devices.code,
        own_batch=own_batch,
        own_batch_stays=own_batch_stays,
        samples=samples,
        environment=software,
        model=model,
        devices=request.devices,
        batch_multiple=request.batch_multiple,
        margin_bytes=request.margin_bytes,
        max_batch=request.max_batch,
        parallel=request.parallel,
        probes=records,
        pipeline=devices.pipeline,
        complete=is_whole and all(record.complete for record in records),
        warnings=tuple(warnings),
    )


def facts_of(devices: ProbedDevices) -> Ready | None:
    """What the first worker said of the model, None if none has."""
    for probed in devices.all:
        if probed.probe_worker.facts is not None:
            return probed.probe_worker.facts
    return None


def probe_warnings(
    request: ProbeRequest, devices: Sequence[ProbedDevice], facts: Ready | None
) -> Iterator[Warning_]:
    """All warnings of a probe but for those of its input pipeline."""
    if request.parallel and sum(probed.began for probed in devices) > 1:
        yield warning("measured-in-parallel")
    for probed in devices:
        yield from _speed_warnings(probed)
        yield from _figures_warnings(probed)
        yield from telemetry_ended(_ended(probed))
    for probed in devices:
        yield from probed.trace_warnings
    if facts is not None and facts.combine_rules.refused is not None:
        refused = facts.combine_rules.refused
        yield warning("not-for-a-split", why=refused.message, advice=refused.remedy)
    if any(point.unlike for probed in devices for point in probed.points.values()):
        yield warning("batches-differ")


def _speed_warnings(probed: ProbedDevice) -> Iterator[Warning_]:
    """Whether the device kept its speed."""
    points = _in_order(probed)
    device = probed.device.label
    advice = to_keep_speed(probed.device)
    if not probed.steady:
        reasons = _reasons(points)
        why = ""
        if reasons:
            why = f" ({reasons})"
        before = [point for point in points if not point.measured_again]
        left = "; all figures are from after the change"
        if before:
            left = f", except batch {_batches(before)}"
        yield warning(
            "throttled/probe", device=device, why=why, left=left, advice=advice
        )
        return
    unsteady = [point for point in points if not point.steady]
    if unsteady:
        reasons = _reasons(unsteady)
        row = "not-steady/points"
        if reasons:
            row = "throttled/points"
        batches = _batches(unsteady)
        yield warning(
            row, device=device, batches=batches, reasons=reasons, advice=advice
        )


def _figures_warnings(probed: ProbedDevice) -> Iterator[Warning_]:
    """How far the figures of the device can be relied on."""
    points = _in_order(probed)
    device = probed.device.label
    wide = []
    for point in points:
        if point.half_width > probed.attempts.precision(point.batch, probed.largest):
            wide.append(point)
    if wide:
        yield warning("wide-interval/points", device=device, batches=_batches(wide))
    late = [point for point in points if point.late_part > LATE]
    if late:
        advice = "use --model small"
        if probed.probe_worker.request.settings.model == "small":
            advice = "use a profile with longer steps, or close other programs"
        batches = _batches(late)
        yield warning(
            "slower-than-profile/points", device=device, batches=batches, advice=advice
        )
    yield from slower_warnings(device, points)
    skipped = probed.attempts.skipped
    if skipped:
        yield warning("smaller-batch-failed", device=device, batches=_listed(skipped))
    if (
        probed.probe_worker.margin_bytes
        and probed.probe_worker.facts is not None
        and probed.probe_worker.usable_bytes is None
    ):
        yield warning("margin-unknown", device=device)


def _ended(probed: ProbedDevice) -> Iterator[tuple[Device, str]]:
    """The device with why its readings ended, for each point without later ones."""
    for point in _in_order(probed):
        if point.telemetry is not None and point.telemetry.ended is not None:
            yield probed.device, point.telemetry.ended


def _in_order(probed: ProbedDevice) -> list[CurvePoint]:
    return [point for _, point in sorted(probed.points.items())]


def _reasons(points: Sequence[CurvePoint]) -> str:
    """NVML's reasons that slowed the device down meanwhile, as a list in text."""
    reasons: list[str] = []
    for point in points:
        if point.telemetry:
            reasons += passing(point.telemetry.throttle_reasons or ())
    return ", ".join(dict.fromkeys(reasons))


def _batches(points: Sequence[CurvePoint]) -> str:
    return _listed([point.batch for point in points])


def _listed(sizes: Sequence[int]) -> str:
    shown = ", ".join(map(str, sizes[:_FEW]))
    if len(sizes) <= _FEW:
        return shown
    return f"{shown} and {len(sizes) - _FEW} more"


def nothing_fits(probed: ProbedDevice) -> NothingFits | None:
    """The error of a device that does not hold a single sample, None if it does."""
    limit = batch_limit(probed)
    if limit is None or limit.fits is not None:
        return None
    held = [
        trial.memory_peak_bytes for trial in limit.trials if trial.memory_peak_bytes
    ]
    if limit.needed_bytes is not None:
        needs = f"it needs {format_bytes(limit.needed_bytes)}"
    elif held:
        needs = f"it held {format_bytes(held[-1])} when it asked for more"
    else:
        needs = "how much it needs is unknown"
    has = "an unknown number of bytes"
    if limit.memory_bytes is not None:
        has = format_bytes(limit.memory_bytes)
    remedy = "use a smaller model, a lower --precision, or a device with more memory"
    if probed.probe_worker.margin_bytes:
        has += f" beside the margin of {format_bytes(probed.probe_worker.margin_bytes)}"
        remedy = f"use a smaller --margin; or {remedy}"
    model = probed.probe_worker.request.settings.model
    return NothingFits(
        f"{model} does not fit on {probed.device.label} at batch size {limit.fails}: "
        f"{needs}, and {has} are free",
        remedy=remedy,
    )


def what_failed(devices: Sequence[ProbedDevice]) -> GpubalanceError | None:
    """One error for all devices' errors, None if there are none. Its exit code is the worst's."""
    errors: list[tuple[Device, GpubalanceError]] = []
    for probed in devices:
        errors += [(probed.device, error) for error in probed.errors]
    if not errors:
        return None
    worst: type[GpubalanceError] = PartialResult
    if all(isinstance(probed.error, EnvironmentFault) for probed in devices):
        worst = EnvironmentFault
    elif {type(error) for _, error in errors} == {NothingFits}:
        worst = NothingFits
    return one_error(worst, errors)
