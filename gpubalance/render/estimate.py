"""An estimate of what a command would do, as text."""

from __future__ import annotations

import textwrap

from gpubalance.numbers.units import format_duration
from gpubalance.render.probe import device_line
from gpubalance.render.table import WIDTH, prose, table
from gpubalance.results.estimate import BalanceEstimate, DeviceEstimate, Estimate, LayersEstimate
from gpubalance.settings.device import Device
from gpubalance.settings.requests import BalanceRequest, LayersRequest


def probe_estimate_text(expected: Estimate) -> str:
    """What would be measured, and for how long."""
    request = expected.request
    how = "all at once" if request.parallel else "one after the other"
    lines = [f"{request.settings.model}, {request.settings.precision}; each device alone, {how}"]
    for one in expected.devices:
        lines += _expected_lines(request.devices[one.device], one)
    return "\n".join([*lines, f"about {format_duration(expected.seconds)} in all; nothing was run"])


def _expected_lines(device: Device, one: DeviceEstimate) -> list[str]:
    sizes = [*map(str, one.sizes[:3]), "…", str(one.sizes[-1])] if len(one.sizes) > 4 else list(map(str, one.sizes))
    known = "its limit is unknown before a probe" if one.guessed else f"to its limit of {one.limit} by its profile"
    workers = f"{one.children} worker{'s' if one.children > 1 else ''}"
    text = (
        f"batch {', '.join(sizes)} ({known}), more where the curve bends; about {workers}, "
        f"about {format_duration(one.seconds)}"
    )
    return [device_line(device), *textwrap.wrap(text, WIDTH - 2, initial_indent="  ", subsequent_indent="  ")]


def phases_estimate_text(expected: BalanceEstimate | LayersEstimate) -> str:
    """How long each phase would take, and all of them."""
    request = expected.request
    devices = ", ".join(f"{device.label} {device.name}" for device in request.devices)
    lines = prose(f"{request.settings.model}, {request.settings.precision}; {devices}", WIDTH)
    if expected.probed:
        lines += prose(f"planned with the probe of {expected.probed}; --fresh would make a new one", WIDTH, "  ")
    what = {"rounds": _rounds(request), "proof": _proof(request)}
    rows = [("", "", "")]
    rows += [(one.name, f"about {format_duration(one.seconds)}", what.get(one.name, "")) for one in expected.phases]
    lines += table(rows, left=(0, 2), indent="  ")[1:]
    return "\n".join([*lines, f"about {format_duration(expected.seconds)} in all; nothing was run"])


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
