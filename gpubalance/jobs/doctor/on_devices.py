"""What doctor tries on the devices: a step on each, and then what moves between them."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.devices.health import watched_links
from gpubalance.jobs.doctor.between import all_reduce, copies
from gpubalance.jobs.doctor.check import guarded, skipped
from gpubalance.jobs.doctor.work import DoctorSteps, links
from gpubalance.jobs.events import Watch
from gpubalance.results.checkup import AllReduceTime, Check, CopyTime
from gpubalance.settings.choices import default_model
from gpubalance.settings.device import Device, JointProfile, hosts_of
from gpubalance.settings.settings import Settings
from gpubalance.workers.party import Party

# Those of the model `probe`: what the all-reduce moves if no training step has told the size.
_GRADIENT_BYTES = 78_900_000 * 4

_BETWEEN = ("peer-to-peer", "all-reduce")

Finding = Check | CopyTime | AllReduceTime


def checks_on_devices(
    party: Party,
    devices: tuple[Device, ...],
    joint: JointProfile,
    model: str | None,
    watch: Watch,
) -> Iterator[Finding]:
    """The checks of all that the devices are tried with; nothing is tried without a device.

    The `party` copies and sums; the steps have their own.
    """
    if not devices:
        why = "not tried: TensorFlow has none of the devices"
        yield from _skipped(why, "training-step", *_BETWEEN)
        return
    if model is None:
        model = default_model(simulated=devices[0].simulated)
    steps = DoctorSteps(Settings(model=model), watch)
    gpus = [device for device in devices if device.told_by_nvml]
    with watched_links([device.uuid for device in gpus]) as seen:
        yield from steps.checks(devices, joint)
    yield from guarded("pcie-link", links(gpus, seen))
    if any(device.uuid.startswith("MIG-") for device in devices):
        devices = devices[:1]  # CUDA shows a process one MIG slice only
    if len(devices) == 1:
        yield from _skipped("there is one device", *_BETWEEN)
        return
    if len(hosts_of(devices)) > 1:
        why = "not tried: the step has summed its gradients between the hosts"
        yield from _skipped(why, *_BETWEEN)
        return
    party.regroup(devices)
    size = steps.size or _GRADIENT_BYTES
    yield from guarded("peer-to-peer", copies(party, devices, watch))
    yield from guarded("all-reduce", all_reduce(party, devices, size, watch))


def _skipped(why: str, *topics: str) -> Iterator[Check]:
    return (skipped(topic, why) for topic in topics)
