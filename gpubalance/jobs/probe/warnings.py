"""Which warnings a probe's result carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.jobs.measure.warnings import LATE, telemetry_ended, to_keep_speed
from gpubalance.jobs.probe.probed_device import ProbedDevice
from gpubalance.jobs.probe.slower import slower_warnings
from gpubalance.planning.curve import wanted_precision
from gpubalance.results.common import Warning_
from gpubalance.results.probe import CurvePoint
from gpubalance.results.telemetry import passing
from gpubalance.results.warnings import warning
from gpubalance.settings.device import Device
from gpubalance.settings.requests import ProbeRequest
from gpubalance.workers.messages import Ready

_FEW = 4


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
    if facts is not None and facts.verdict.refused is not None:
        refused = facts.verdict.refused
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
        left = ", and the figures are of the changed speed"
        if before:
            left = f", but not batch {_batches(before)}"
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
        if point.half_width > wanted_precision(point.batch, probed.largest):
            wide.append(point)
    if wide:
        yield warning("wide-interval/points", device=device, batches=_batches(wide))
    late = [point for point in points if point.late_part > LATE]
    if late:
        advice = "use --model small"
        if probed.bench.request.settings.model == "small":
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
        probed.bench.request.margin_bytes
        and probed.bench.facts is not None
        and probed.bench.usable_bytes is None
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
