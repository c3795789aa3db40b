"""An estimate of what a command would do, as text."""

from __future__ import annotations

from gpubalance.numbers.units import format_duration
from gpubalance.render.table import WIDTH, prose, table
from gpubalance.results.estimate import Estimate


def estimate_text(expected: Estimate) -> str:
    """Each phase with about how long it would take, and how long all of them."""
    request = expected.request
    devices = ", ".join(f"{device.label} {device.name}" for device in request.devices)
    lines = prose(f"{request.settings.model}, {request.settings.precision}; {devices}", WIDTH)
    if expected.probed:
        lines += prose(f"planned with the probe of {expected.probed}; --fresh would make a new one", WIDTH, "  ")
    rows = [("", ""), *((one.name, f"about {format_duration(one.seconds)}") for one in expected.phases)]
    lines += table(rows, indent="  ")[1:]
    return "\n".join([*lines, f"about {format_duration(expected.seconds)} in all; nothing was run"])
