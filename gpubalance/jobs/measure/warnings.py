"""Which of the warnings about figures hold, and whether the machine is as fast as its profile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from gpubalance.errors import UsageError
from gpubalance.jobs.measure import figures
from gpubalance.jobs.measure.figures import Throttled, Windows
from gpubalance.jobs.measure.stopping import PRECISE_ENOUGH
from gpubalance.jobs.measure.window import Workload
from gpubalance.numbers.units import format_percent, format_seconds
from gpubalance.planning.parts import SLOW
from gpubalance.remedies import known_error
from gpubalance.results.common import Warning_
from gpubalance.results.warnings import COOLER, warning
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import names_file_or_code
from gpubalance.settings.device import Device, JointProfile, hosts_of
from gpubalance.settings.settings import Settings

_STAMPS_CHEAP = 0.03
LATE = 0.1
MOST = 0.5
# A run whose steps take more times what they take by the profile ends without a result.
CLEARLY = 1.5
_FEWEST_SLOW = 2
# Steps that take this many times as long as by the profile say nothing of its devices. The first of
# several batches that does is no chance, as larger ones only take longer.
FIRST = 1.1
# A scale that does for the first batch may not do for the largest
_ROOM = 2.0


def of_figures(
    settings: Settings,
    throttled: Throttled,
    measured: Sequence[Windows],
    *,
    names: Sequence[str] = (),
    steady: bool = True,
    excess_part: float = 0.0,
) -> list[Warning_]:
    """The warnings about the figures of all that was measured interleaved, what matters most first.

    `measured` has the windows of each workload, and `names` what tells their step times apart. They
    are `steady` if every warm-up ended without a trend. `excess_part` is that of a device's compute
    over a whole step.
    """
    stamp_cost = None
    if measured:
        stamp_cost = figures.stamp_cost(measured[0])
    precisions = list(map(figures.precision, measured))
    precision = max(precisions, default=0.0)
    widest = ""
    if names:
        widest = names[precisions.index(precision)]
    late_part = max(map(figures.late_part, measured), default=0.0)
    over = max(map(figures.mean_over_median, measured), default=0.0)
    slow_count = sum(map(figures.slow_step_count, measured))
    stamped_count = sum(len(figures.stamped_in(windows)) for windows in measured)
    holds = {
        "throttled": bool(throttled),
        "too-slow-for-profile": late_part > MOST,
        "slower-than-profile": LATE < late_part <= MOST,
        "wide-interval": precision > PRECISE_ENOUGH,
        "not-steady": not steady,
        "new-shapes": any(map(figures.have_new_shapes, measured)),
        "slow-steps": slow_count >= _FEWEST_SLOW or over > 0,
        "stamps-cost": (stamp_cost or 0.0) > _STAMPS_CHEAP,
        "parts-exceed-step": excess_part > _STAMPS_CHEAP,
        "loss-not-finite": not all(map(figures.loss_is_finite, measured)),
    }
    facts = {
        "throttled": throttled_text(throttled),
        "late": format_percent(late_part),
        "advice": _for_slow_compute(settings),
        "wide": _wide_text(precision, widest),
        "slow": _slow_text(slow_count, stamped_count, over),
        "costs": format_percent(stamp_cost, 1),
        "excess": format_percent(excess_part, 1),
    }
    return [warning(row, **facts) for row, it_holds in holds.items() if it_holds]


def _wide_text(precision: float, of: str) -> str:
    if math.isinf(precision):
        return f"too few timings{of} for a confidence interval"
    half = format_percent(precision, 1)
    enough = format_percent(PRECISE_ENOUGH)
    return f"the 95 % interval of a step time{of} is ± {half}, wider than ± {enough}"


def _slow_text(slow_count: int, stamped_count: int, over: float) -> str:
    if slow_count >= _FEWEST_SLOW:
        steps = f"{slow_count} of {stamped_count} steps timed one by one"
        return f"{steps} took over {SLOW:g} times their median"
    longer = f"on average a step takes {format_percent(over, 1)} longer than shown"
    return f"some timings are much longer than the others: {longer}"


def _for_slow_compute(settings: Settings) -> str:
    """What to do where this machine takes longer for a model than the devices that it simulates."""
    model = settings.model
    scale = 2 ** math.ceil(math.log2(CLEARLY * settings.time_scale))
    longer = f"--time-scale {scale:g}, which slows down the simulated devices"
    planned = "a plan holds for one time scale: balance again with the new one"
    if names_file_or_code(model):
        return (
            f"use {longer} ({planned}); raise it until this warning disappears; or use "
            "--simulate N, which measures this machine's own processor"
        )
    if model == "small":
        return f"use larger batches, or {longer}; {planned}"
    return f"use --model small, or {longer}; {planned}"


def throttled_text(throttled: Throttled) -> str:
    """`GPU:0 was throttled (thermal)`, with NVML's reasons."""
    texts = []
    for device, reasons in throttled:
        texts.append(f"{device.label} was throttled ({', '.join(reasons)})")
    return " and ".join(texts)


def telemetry_ended(ended: Iterable[tuple[Device, str]]) -> Iterator[Warning_]:
    """The warning for each GPU whose readings have ended, by the code of a known error."""
    for device, code in dict.fromkeys(ended):
        row = known_error(code)
        fault = row.message.removeprefix("the GPU ")
        yield warning(
            "telemetry-ended", device=device.label, fault=fault, remedy=row.remedy
        )


def resumed(count: int, what: str = "windows") -> list[Warning_]:
    """The warning that so many of these were measured before an interruption, if any were."""
    if not count:
        return []
    verb, whose = ("was", "its") if count == 1 else ("were", "their")
    since = ""
    if what == "windows":
        since = (
            f", after a warm-up of {whose} own. Telemetry covers the other windows only"
        )
    return [warning("resumed", count=count, what=f"{what} {verb}", since=since)]


def batches_joined(own: int | None, size: int) -> list[Warning_]:
    """The warning that the run's batches were made from the user's `own`, which differ in shape.

    `own` is None if that is not so.
    """
    if not own:
        return []
    return [warning("batches-joined", own=own, size=size)]


def speed_changed(device: Device, change: float) -> Warning_:
    """The warning that a device became slower, or faster if `change` is negative, by that part."""
    return warning(
        "throttled/speed",
        device=device.label,
        part=format_percent(abs(change)),
        slower="slower" if change > 0 else "faster",
        advice=to_keep_speed(device),
    )


def to_keep_speed(device: Device) -> str:
    """What to do so that a device keeps its speed."""
    if not device.simulated:
        return COOLER
    if device.profile is not None and device.profile.drift:
        return "use a profile without drift (a speed that changes over time)"
    return "close other programs: this machine's processor simulates the device"


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
        f"this machine computes {settings.model} more slowly than the profile's "
        f"device: {where} takes {format_seconds(step_s)} instead of "
        f"{format_seconds(profile_s)}, {times:.3g} times as long",
        remedy=_remedy(settings, times),
    )


def too_slow_windows(
    workload: Workload, windows: Windows, settings: Settings, joint: JointProfile
) -> UsageError | None:
    """As `too_slow`, by a workload's windows."""
    return too_slow(
        workload.devices,
        workload.split,
        settings,
        joint,
        step_s=figures.median_step_s(windows) - figures.input_wait_s(windows),
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
        remedies.append(
            f"use --time-scale {scale:g}: it slows down all simulated devices alike, "
            "so the best split stays the same"
        )
    if settings.model != "small":
        remedies.append("use --model small, the built-in model with little compute")
    remedies.append("use smaller inputs: fewer pixels or shorter texts")
    return "\n".join(remedies)
