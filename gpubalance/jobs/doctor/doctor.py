"""`doctor` as a whole: first it checks what everything depends on, then what depends on that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpubalance.devices.gpus import Gpu, Reading
from gpubalance.devices.machine import read_gpus
from gpubalance.devices.profile import simulated_devices
from gpubalance.devices.select import select
from gpubalance.errors import GpubalanceError, Interrupted
from gpubalance.jobs.doctor.gpus import driver_checks, gpu_checks
from gpubalance.jobs.doctor.host import host_checks
from gpubalance.jobs.doctor.software import software_checks
from gpubalance.jobs.doctor.topic import failed, skipped
from gpubalance.jobs.doctor.work import all_reduce, copies, tensorflow_devices, training_steps
from gpubalance.jobs.events import Doing, Watch
from gpubalance.results.checkup import AllReduceTime, Check, Checkup, CopyTime
from gpubalance.results.common import now
from gpubalance.settings import choices
from gpubalance.settings.device import Device, JointProfile, hosts_of
from gpubalance.settings.requests import Settings
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

_INSTEAD = 2  # plain CPU devices, used if there is no GPU
# Those of the model `probe`: what the all-reduce moves if no training step has told the size.
_GRADIENT_BYTES = 78_900_000 * 4


@dataclass
class _Findings:
    """What is known so far; it can become a checkup at any moment."""

    watch: Watch
    checks: list[Check] = field(default_factory=list)
    copies: list[CopyTime] = field(default_factory=list)
    all_reduce: AllReduceTime | None = None
    devices: tuple[Device, ...] = ()
    joint: JointProfile = field(default_factory=JointProfile)

    def checkup(self, *, complete: bool) -> Checkup:
        """The checkup of what is known so far."""
        return Checkup(
            created=now(),
            devices=self.devices,
            checks=tuple(self.checks),
            copies=tuple(self.copies),
            all_reduce=self.all_reduce,
            complete=complete,
        )


def doctor(simulate: str | None, gpus: Sequence[str] | None, model: str | None, watch: Watch) -> Checkup:
    """Checks the machine. Faults are listed in the checkup, never raised.

    Without a usable GPU, or with `simulate`, the work is tried on simulated devices. Raises UsageError for a device
    that is not here, BadInput for a bad profile, and Interrupted with the checks so far.
    """
    found = _Findings(watch)
    try:
        reading, chosen = _machine(found, simulate, gpus)
        found.checks += host_checks(gpus=len(chosen))
        with Party(found.devices, purpose="check") as party:
            why_not = _software(found, party, reading, chosen)
            if why_not:
                topics = ("training-step", "peer-to-peer", "all-reduce")
                found.checks += [skipped(topic, f"not tried: {why_not}") for topic in topics]
            else:
                _work(found, party, model)
    except KeyboardInterrupt as interrupt:
        partial = found.checkup(complete=False) if found.checks else None
        raise Interrupted.by(interrupt, partial=partial, remedy="what was checked is above") from None
    return found.checkup(complete=True)


def _machine(
    found: _Findings, simulate: str | None, gpus: Sequence[str] | None
) -> tuple[Reading | None, tuple[Gpu, ...]]:
    """NVML's reading and the GPUs to check; sets the devices that work is tried on."""
    if simulate is not None:
        devices, found.joint = simulated_devices(simulate)
        found.devices = select(gpus, devices)
        found.checks.append(skipped("no-gpu", "not looked at: --simulate"))
        return None, ()
    found.watch(Doing("reading the GPUs through NVML"))
    reading = read_gpus()
    chosen = reading.gpus
    if gpus is not None and chosen:  # an unusable one too: that is what a doctor is for
        named = {device.uuid for device in select(gpus, [gpu.device for gpu in chosen])}
        chosen = tuple(gpu for gpu in chosen if gpu.uuid in named)
    found.checks += driver_checks(reading)
    if chosen:
        found.watch(Doing("reading how each GPU is set and doing"))
        found.checks += gpu_checks(chosen)
    found.devices = tuple(device for gpu in chosen for device in gpu.devices)
    if not found.devices:
        found.devices, found.joint = simulated_devices(_INSTEAD)
        none = "none can be used" if reading.gpus else "none here"
        detail = f"{none}: the rest is checked on {len(found.devices)} simulated devices; --simulate asks for no GPU"
        found.checks.append(skipped("no-gpu", detail))
    return reading, chosen


def _software(found: _Findings, party: Party, reading: Reading | None, chosen: Sequence[Gpu]) -> str | None:
    """Checks TensorFlow and its libraries. Returns why no device can be tried with them, or None."""
    found.watch(Doing("loading TensorFlow and its libraries"))
    try:
        found.checks += software_checks(party.ask(Worker.inspect), reading, chosen)
    except GpubalanceError as error:
        found.checks.append(failed("tensorflow", error))
        return "TensorFlow can't be loaded"
    if found.devices[0].simulated:
        return None
    found.watch(Doing("asking TensorFlow which of the GPUs it can use"))
    try:
        surveyed = party.ask(Worker.survey)
    except GpubalanceError as error:
        found.checks.append(failed("tensorflow-devices", error))
        return "TensorFlow did not list its GPUs"
    found.checks += tensorflow_devices(surveyed, found.devices)
    found.devices = tuple(device for device in found.devices if device.uuid not in surveyed.missing)
    return None if found.devices else "TensorFlow has none of the GPUs"


def _work(found: _Findings, party: Party, model: str | None) -> None:
    devices = found.devices
    settings = Settings(model=model or choices.default_model(simulated=devices[0].simulated))
    checks, size = training_steps(devices, found.joint, settings, found.watch)
    found.checks += checks
    if any(device.uuid.startswith("MIG-") for device in devices):
        devices = devices[:1]  # CUDA shows a process one MIG slice only
    if len(hosts_of(devices)) > 1:
        detail = "not tried between hosts: the step has summed its gradients over them"
        found.checks += [skipped(topic, detail) for topic in ("peer-to-peer", "all-reduce")]
        return
    party.regroup(devices)
    checks, found.copies = copies(party, devices, found.watch)
    found.checks += checks
    check, found.all_reduce = all_reduce(party, devices, size or _GRADIENT_BYTES, found.watch)
    found.checks.append(check)
