"""The warnings that a probe's result carries."""

from __future__ import annotations

from gpubalance.errors import GpubalanceError
from gpubalance.jobs.measure.warnings import LATE, to_keep_speed
from gpubalance.jobs.probe.alone import Alone
from gpubalance.planning.curve import wanted_precision
from gpubalance.results.common import Warning_
from gpubalance.results.probe import CurvePoint
from gpubalance.results.telemetry import passing
from gpubalance.settings.device import Device

_FEW = 4


def device_warnings(alone: Alone) -> list[Warning_]:
    """The warnings about one device."""
    device, points = alone.bench.device, [p for _, p in sorted(alone.points.items())]
    found = [
        _drifted(device, alone.steady, points),
        _not_steady(device, [p for p in points if not p.steady]) if alone.steady else None,
        _imprecise(device, [p for p in points if p.half_width > wanted_precision(p.batch, alone.largest)]),
        _late(device, points, alone.bench.request.settings.model),
        _skipped(device, alone.skipped),
        _margin_unknown(device, alone),
    ]
    return [warning for warning in found if warning is not None]


def parallel_warning() -> Warning_:
    """The warning that devices measured at the same time may disturb each other."""
    return Warning_(
        code="measured-in-parallel",
        message="the devices were measured at the same time: they may have disturbed each other",
        next="leave out --parallel for what each can do alone",
    )


def pipeline_unknown(error: GpubalanceError) -> Warning_:
    """The warning that the user's input pipeline could not be measured alone."""
    return Warning_(
        code="pipeline-unknown",
        message=f"the input pipeline was not measured alone: {error.message}",
        next=error.remedy or "gpubalance run --data measures it with a split",
    )


def _drifted(device: Device, steady: bool, points: list[CurvePoint]) -> Warning_ | None:
    if steady:
        return None
    reasons = _reasons(points)
    why = f" ({reasons})" if reasons else ""
    before = [point for point in points if not point.measured_again]
    left = f", but not batch {_batches(before)}" if before else ", and the figures are of the changed speed"
    return Warning_(
        code="throttled",
        message=f"{device.label} changed its speed{why} while it was measured: batches were measured "
        f"once more after that{left}",
        next=f"{to_keep_speed(device)}, and probe again",
    )


def _not_steady(device: Device, points: list[CurvePoint]) -> Warning_ | None:
    if not points:
        return None
    reasons = _reasons(points)
    why = f"was of a throttled device ({reasons})" if reasons else "rose or fell while it was measured"
    return Warning_(
        code="throttled" if reasons else "not-steady",
        message=f"{device.label}: the step time at batch {_batches(points)} {why}, and was measured once more",
        next=f"{to_keep_speed(device)}, and probe again" if reasons else "probe again with nothing else running",
    )


def _imprecise(device: Device, points: list[CurvePoint]) -> Warning_ | None:
    if not points:
        return None
    return Warning_(
        code="wide-interval",
        message=f"{device.label}: the step time at batch {_batches(points)} is not known within ± 1 % (95 %), or "
        "within ± 3 % up to half of the largest batch",
        next="measure longer (--duration), with nothing else running",
    )


def _late(device: Device, points: list[CurvePoint], model: str) -> Warning_ | None:
    late = [p for p in points if p.late_part > LATE]
    if not late:
        return None
    return Warning_(
        code="slower-than-profile",
        message=f"{device.label}: at batch {_batches(late)} the real compute took longer than the profile's time: "
        "the figures are this machine's, not the profile's",
        next="use --model small" if model != "small" else "use a profile with longer steps, or close other programs",
    )


def _skipped(device: Device, sizes: list[int]) -> Warning_ | None:
    if not sizes:
        return None
    return Warning_(
        code="smaller-batch-failed",
        message=f"{device.label}: batch {_listed(sizes)} failed though a larger one trains",
        next="nothing to do: memory in pieces, or a slower algorithm near the limit, can be the cause",
    )


def _margin_unknown(device: Device, alone: Alone) -> Warning_ | None:
    if not alone.bench.request.margin_bytes or alone.bench.facts is None or alone.bench.memory_bytes is not None:
        return None
    return Warning_(
        code="margin-unknown",
        message=f"{device.label}: TensorFlow does not report its memory, so no margin could be kept free",
        next="give the profile a memory, or leave out --margin",
    )


def _reasons(points: list[CurvePoint]) -> str:
    """NVML's reasons that slowed the device down meanwhile, as a list in text."""
    told = [reason for p in points if p.telemetry for reason in passing(p.telemetry.throttle_reasons or ())]
    return ", ".join(dict.fromkeys(told))


def _batches(points: list[CurvePoint]) -> str:
    return _listed([point.batch for point in points])


def _listed(sizes: list[int]) -> str:
    shown = ", ".join(map(str, sizes[:_FEW]))
    return shown if len(sizes) <= _FEW else f"{shown} and {len(sizes) - _FEW} more"
