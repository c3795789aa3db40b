"""Whether this machine computes a model about as fast as the profile that it simulates."""

from __future__ import annotations

import math

from gpubalance.errors import UsageError
from gpubalance.jobs.measure.warnings import MOST
from gpubalance.numbers.units import format_seconds
from gpubalance.results.probe import CurvePoint
from gpubalance.settings.device import Device
from gpubalance.settings.settings import Settings

# Steps that take this many times as long as by the profile say nothing of its devices. A first
# batch that does is no chance, as larger ones only take longer.
_FIRST = 1.1
_LATER = 1.5
# A scale that does for the first batch may not do for the largest
_ROOM = 2.0


def refuse_too_slow(
    device: Device, settings: Settings, point: CurvePoint, *, first: bool
) -> None:
    """Raises UsageError if most steps of a point took clearly longer than by its profile."""
    profile = device.profile
    if profile is None or point.late_part <= MOST:
        return
    profile_s = profile.compute_s(point.batch) + profile.update_s
    if settings.xla:
        profile_s *= profile.xla_factor or 1.0
    times = point.step_time_s.median / profile_s if profile_s else math.inf
    if times <= (_FIRST if first else _LATER):
        return
    took = format_seconds(point.step_time_s.median)
    by_profile = format_seconds(profile_s)
    raise UsageError(
        f"this machine computes {settings.model} more slowly than the profile: on {device.label} a "
        f"step of {point.batch} samples takes {took} and by the profile {by_profile}, "
        f"{times:.3g} times as long",
        remedy=_remedy(settings, times),
    )


def _remedy(settings: Settings, times: float) -> str:
    remedies = []
    if not math.isinf(times):
        scale = settings.time_scale * 2 ** math.ceil(math.log2(_ROOM * times))
        remedies.append(f"--time-scale {scale:g} slows the profile, for the same split")
    if settings.model != "small":
        remedies.append("--model small, which is built in, computes little")
    remedies.append("smaller inputs: fewer pixels or shorter texts")
    return "\n".join(remedies)
