"""What a probe would do, and about how long it would take: for `--dry-run`."""

from __future__ import annotations

from gpubalance.planning.curve import octaves
from gpubalance.results.estimate import DeviceEstimate, Estimate
from gpubalance.settings.device import Device
from gpubalance.settings.requests import ProbeRequest

# Measured on simulated devices: how long a worker takes to build its model once TensorFlow is loaded, and the first
# one to do both.
_WORKER_S = 2.0
_FIRST_WORKER_S = 5.0
_WORKERS = 4  # one for the curve, two to three for the limit, one for what is missing
_SETTLING_STEPS = 4
_TIMINGS = 5
_TIMING_S = 0.25
_GUESSED_LIMIT = 1024
_GUESSED_STEP_S = 0.2


def estimate(request: ProbeRequest) -> Estimate:
    """Touches no device. A simulated device's limit and step times come from its profile, others are guessed."""
    devices = tuple(_device(number, device, request) for number, device in enumerate(request.devices))
    each = [device.seconds for device in devices]
    return Estimate(request=request, devices=devices, seconds=max(each) if request.parallel else sum(each))


def _device(number: int, device: Device, request: ProbeRequest) -> DeviceEstimate:
    limit, guessed = _limit(device, request)
    multiple = min(request.batch_multiple, max(1, limit))
    sizes = octaves(multiple, max(1, limit), multiple)
    seconds = _FIRST_WORKER_S + (_WORKERS - 1) * _WORKER_S
    for size in [*sizes, sizes[-1] // 2]:  # and the size that is within 5 % of the best
        step_s = _step_s(device, size)
        seconds += max(request.duration_s or 0.0, _TIMINGS * max(_TIMING_S, step_s)) + _SETTLING_STEPS * step_s
    return DeviceEstimate(
        device=number, sizes=tuple(sizes), limit=limit, guessed=guessed, children=_WORKERS, seconds=round(seconds)
    )


def _limit(device: Device, request: ProbeRequest) -> tuple[int, bool]:
    most = request.max_batch
    profile = device.profile
    if profile is not None and profile.memory is not None and profile.memory_per_sample:
        by_memory = (profile.memory - profile.base_memory - request.margin_bytes) // profile.memory_per_sample
        return max(0, by_memory if most is None else min(most, by_memory)), False
    return most or _GUESSED_LIMIT, True


def _step_s(device: Device, batch: int) -> float:
    profile = device.profile
    return profile.alpha_s + profile.beta_s * batch + profile.update_s if profile else _GUESSED_STEP_S
