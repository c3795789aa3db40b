"""Whether this machine computes a model about as fast as the profile that it simulates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpubalance.errors import UsageError
from gpubalance.jobs.measure import figures
from gpubalance.jobs.measure.figures import Windows
from gpubalance.jobs.measure.subject import Subject
from gpubalance.jobs.measure.warnings import CLEARLY, MOST
from gpubalance.numbers.units import format_seconds
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, JointProfile, hosts_of
from gpubalance.settings.settings import Settings

# Steps that take this many times as long as by the profile say nothing of its devices. The first of
# several batches that does is no chance, as larger ones only take longer.
FIRST = 1.1
# A scale that does for the first batch may not do for the largest
_ROOM = 2.0


def too_slow(
    devices: Sequence[Device],
    split: BatchSplit,
    settings: Settings,
    joint: JointProfile,
    *,
    step_s: float,
    late_part: float,
    allowed: float = CLEARLY,
) -> UsageError | None:
    """The error if most steps took longer than `allowed` times what they take by the profile.

    `step_s` is a step without a wait for data, `late_part` the part of steps whose real compute was
    late. None too for devices that follow no profile, and over several hosts, whose real all-reduce
    is in a step.
    """
    profile_s = _profile_s(devices, split, settings, joint)
    if profile_s is None or late_part <= MOST or len(hosts_of(devices)) > 1:
        return None
    times = step_s / profile_s if profile_s else math.inf
    if times <= allowed:
        return None
    where = f"on {devices[0].label} a step of {split} samples"
    if len(devices) > 1:
        where = f"a step of the split {split}"
    return UsageError(
        f"this machine computes {settings.model} more slowly than the profile: {where} takes "
        f"{format_seconds(step_s)} and by the profile {format_seconds(profile_s)}, {times:.3g} "
        "times as long",
        remedy=_remedy(settings, times),
    )


def too_slow_windows(
    subject: Subject, windows: Windows, settings: Settings, joint: JointProfile
) -> UsageError | None:
    """As `too_slow`, by a subject's windows."""
    return too_slow(
        subject.devices,
        subject.split,
        settings,
        joint,
        step_s=figures.usual_s(windows) - figures.input_wait_s(windows),
        late_part=figures.late_part(windows),
    )


def _profile_s(
    devices: Sequence[Device],
    split: BatchSplit,
    settings: Settings,
    joint: JointProfile,
) -> float | None:
    """What a step takes by the devices' profiles; None if one follows none."""
    profiles = [device.profile for device in devices]
    are_several = len(devices) > 1
    slowest_s = 0.0
    for profile, batch, size in zip(
        profiles, split.batches, split.micro_batches, strict=True
    ):
        if profile is None:
            return None
        compute_s = profile.compute_s(batch, size)
        if settings.xla:
            compute_s *= profile.xla_factor or 1.0
        if are_several:
            compute_s *= joint.contention
        slowest_s = max(slowest_s, compute_s + profile.update_s)
    return slowest_s + (joint.among(profiles).sync_s if are_several else 0.0)


def _remedy(settings: Settings, times: float) -> str:
    remedies = []
    if not math.isinf(times):
        scale = settings.time_scale * 2 ** math.ceil(math.log2(_ROOM * times))
        remedies.append(f"--time-scale {scale:g} slows the profile, for the same split")
    if settings.model != "small":
        remedies.append("--model small, which is built in, computes little")
    remedies.append("smaller inputs: fewer pixels or shorter texts")
    return "\n".join(remedies)
