"""What a probe would do, and about how long it would take, for `--dry-run`."""

from __future__ import annotations

from gpubalance.devices.hosts import are_reached
from gpubalance.jobs.measure.expected import step_s
from gpubalance.planning.curve import octaves, on_line
from gpubalance.results.estimate import DeviceEstimate, Estimate
from gpubalance.settings.device import Device, hosts_of
from gpubalance.settings.requests import ProbeRequest

# Measured on simulated devices: the time that a worker takes to build its model once TensorFlow is loaded, that the
# first one takes for both, and that a worker's first steps with a batch take.
_WORKER_S = 2.0
_FIRST_WORKER_S = 5.0
_WORKERS = 4  # one for the curve, two to three for the limit, one to fill; a profile's memory takes one in all
_NEW_BATCH_S = 0.3
_SETTLING_STEPS = 4
_UPDATE_STEPS = 9
_LOOKS = 2  # checks that the device has kept its speed, with timings half as long
_SHORT_S = 0.1  # the longest step at which the update is measured
_TIMINGS = 5
_TIMING_S = 0.25
_GUESSED_LIMIT = 1024


def estimate(request: ProbeRequest) -> Estimate:
    """Estimates a probe without using a device: from a simulated device's profile, and by guess for a GPU."""
    devices = tuple(_device(number, device, request) for number, device in enumerate(request.devices))
    seconds = max(sum(devices[number].seconds for number in queue) for queue in queues(request))
    return Estimate(request=request, devices=devices, seconds=seconds)


def queues(request: ProbeRequest) -> list[list[int]]:
    """Queues of device numbers: devices in a queue are measured one after the other, the queues at the same time.

    One queue in all, or one for each device if that is asked for, or one for each host if each is its own machine.
    """
    numbers = range(len(request.devices))
    if request.parallel:
        return [[number] for number in numbers]
    if not are_reached():
        return [[*numbers]]
    hosts = hosts_of(request.devices)
    return [[number for number in numbers if request.devices[number].host == host] for host in hosts]


def _device(number: int, device: Device, request: ProbeRequest) -> DeviceEstimate:
    limit, guessed = _limit(device, request)
    multiple = min(request.batch_multiple, max(1, limit))
    sizes = on_line(octaves(multiple, max(1, limit), multiple))
    in_pieces = device.profile is None or device.profile.memory is None
    workers = _WORKERS if in_pieces else 1
    loaded = request.ahead and not any(number == queue[0] for queue in queues(request))
    seconds = (_WORKER_S if loaded else _FIRST_WORKER_S) + (workers - 1) * _WORKER_S
    short = max((size for size in sizes if step_s(device, size) <= _SHORT_S), default=sizes[0])
    seconds += _UPDATE_STEPS * step_s(device, short) + _LOOKS * _point_s(device, sizes[0], sizes[-1], None)
    measured = (*sizes, sizes[-1] // 2)  # the last stands for the size within 5 % of the best throughput
    seconds += sum(_point_s(device, size, sizes[-1], request.duration_s) for size in measured)
    return DeviceEstimate(
        device=number, sizes=tuple(sizes), limit=limit, guessed=guessed, children=workers, seconds=round(seconds)
    )


def _point_s(device: Device, size: int, largest: int, duration_s: float | None) -> float:
    one_s = step_s(device, size)
    timing_s = _TIMING_S if 2 * size > largest else _TIMING_S / 2
    return _NEW_BATCH_S + _SETTLING_STEPS * one_s + max(duration_s or 0.0, _TIMINGS * max(timing_s, one_s))


def _limit(device: Device, request: ProbeRequest) -> tuple[int, bool]:
    most = request.max_batch
    profile = device.profile
    if profile is not None and profile.memory is not None and profile.memory_per_sample:
        by_memory = (profile.memory - profile.base_memory - request.margin_bytes) // profile.memory_per_sample
        return max(0, by_memory if most is None else min(most, by_memory)), False
    return most or _GUESSED_LIMIT, True
