"""The warnings that a probe's result carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.jobs.measure.warnings import LATE, to_keep_speed, warning
from gpubalance.jobs.probe.alone import Alone
from gpubalance.planning.curve import wanted_precision
from gpubalance.results.common import Warning_
from gpubalance.results.probe import CurvePoint
from gpubalance.results.telemetry import passing
from gpubalance.settings.requests import ProbeRequest
from gpubalance.workers.messages import Ready

_FEW = 4


def probe_warnings(
    request: ProbeRequest, devices: Sequence[Alone], facts: Ready | None
) -> Iterator[Warning_]:
    """All warnings of a probe but for those of its input pipeline."""
    if request.parallel and sum(alone.began for alone in devices) > 1:
        yield warning("measured-in-parallel")
    for alone in devices:
        for code, holds, message, advice in _rows(alone):
            if holds:
                yield Warning_(code=code, message=f"{alone.device.label}{message}", next=advice)
    for alone in devices:
        yield from alone.trace_warnings
    refused = facts.verdict.refused if facts else None
    if refused:
        yield warning("not-for-a-split", why=refused.message, advice=refused.remedy)
    if any(point.unlike for alone in devices for point in alone.points.values()):
        yield warning("batches-differ")


def _rows(alone: Alone) -> Iterator[tuple[str, object, str, str]]:
    """Of a device: code, whether it holds, the message after the label, and what to do."""
    device, request, facts = alone.device, alone.bench.request, alone.bench.facts
    points = [point for _, point in sorted(alone.points.items())]
    keep_speed = f"{to_keep_speed(device)}, and probe again"

    before = [point for point in points if not point.measured_again]
    why = f" ({_reasons(points)})" if _reasons(points) else ""
    left = ", and the figures are of the changed speed"
    if before:
        left = f", but not batch {_batches(before)}"
    yield (
        "throttled",
        not alone.steady,
        f" changed its speed{why} while it was measured: batches were measured once more after "
        f"that{left}",
        keep_speed,
    )

    unsteady = [point for point in points if not point.steady]
    slowed = _reasons(unsteady)
    code, why = "not-steady", "rose or fell while it was measured"
    advice = "probe again with nothing else running"
    if slowed:
        code, why = "throttled", f"was of a throttled device ({slowed})"
        advice = keep_speed
    yield (
        code,
        alone.steady and unsteady,
        f": the step time at batch {_batches(unsteady)} {why}, and was measured once more",
        advice,
    )

    largest = alone.largest
    wide = [point for point in points if point.half_width > wanted_precision(point.batch, largest)]
    yield (
        "wide-interval",
        wide,
        f": the step time at batch {_batches(wide)} is not known within ± 1 % (95 %), or "
        "within ± 3 % up to half of the largest batch",
        "measure longer (--duration), with nothing else running",
    )

    late = [point for point in points if point.late_part > LATE]
    advice = "use --model small"
    if request.settings.model == "small":
        advice = "use a profile with longer steps, or close other programs"
    yield (
        "slower-than-profile",
        late,
        f": at batch {_batches(late)} the real compute took longer than the profile's time: "
        "the figures are this machine's, not the profile's",
        advice,
    )
    yield (
        "smaller-batch-failed",
        alone.skipped,
        f": batch {_listed(alone.skipped)} failed though a larger one trains",
        "nothing to do: memory in pieces, or a slower algorithm near the limit, can be the cause",
    )
    yield (
        "margin-unknown",
        request.margin_bytes and facts is not None and alone.bench.usable_bytes is None,
        ": TensorFlow does not report its memory, so no margin could be kept free",
        "give the profile a memory, or leave out --margin",
    )


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
    return shown if len(sizes) <= _FEW else f"{shown} and {len(sizes) - _FEW} more"
