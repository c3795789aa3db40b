"""An estimate of what a command would do, as text."""

from __future__ import annotations

from gpubalance.numbers.units import format_duration
from gpubalance.render.table import WIDTH, prose, table
from gpubalance.results.estimate import Estimate
from gpubalance.settings.requests import BalanceRequest, LayersRequest, ProbeRequest


def estimate_text(expected: Estimate) -> str:
    """What each phase would do and how long it would take, and how long all of them."""
    request = expected.request
    devices = ", ".join(f"{device.label} {device.name}" for device in request.devices)
    lines = prose(f"{request.settings.model}, {request.settings.precision}; {devices}", WIDTH)
    if expected.probed:
        lines += prose(f"planned with the probe of {expected.probed}; --fresh would make a new one", WIDTH, "  ")
    what = {"blocks": "each layer, on each device"}
    if not isinstance(request, ProbeRequest):
        what |= {"rounds": _rounds(request), "proof": _proof(request)}
    rows = [("", "", "")]
    for one in expected.phases:
        rows.append((one.name, f"about {format_duration(one.seconds)}", what.get(one.name, _alone(request))))
    lines += table(rows, left=(0, 2), indent="  ")[1:]
    return "\n".join([*lines, f"about {format_duration(expected.seconds)} in all; nothing was run"])


def _alone(request: ProbeRequest | BalanceRequest | LayersRequest) -> str:
    uncut = request.uncut if isinstance(request, LayersRequest) else request
    probe = uncut if isinstance(uncut, ProbeRequest) else uncut.probe
    least, most = probe.batch_multiple, probe.max_batch
    return f"batches from {least} up to its limit" if most is None else f"batches from {min(least, most)} up to {most}"


def _rounds(request: BalanceRequest | LayersRequest) -> str:
    if isinstance(request, LayersRequest):
        return f"up to {request.rounds} cuts, {request.round_s:g} s each"
    length = "usually 5 timings each" if request.round_s is None else f"{request.round_s:g} s or 5 timings each"
    return f"up to {request.rounds} splits, {length}"


def _proof(request: BalanceRequest | LayersRequest) -> str:
    measuring = request.measuring
    length = "5 timings" if measuring.duration_s is None else f"{measuring.duration_s:g} s"
    has_even = isinstance(request, BalanceRequest) and measuring.baseline == "even" and len(request.devices) > 1
    turns = ", in turns with the even split" if has_even else ""
    return f"{measuring.windows} windows of {length}{turns}"
