"""`doctor` as a whole: checks of the machine, first what everything depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpubalance.devices.machine import Machine, read_gpus
from gpubalance.devices.nvml import Gpu, Reading
from gpubalance.devices.profile import simulated_devices
from gpubalance.devices.select import select
from gpubalance.errors import Interrupted
from gpubalance.jobs.doctor.check import guarded, skipped
from gpubalance.jobs.doctor.gpus import driver_checks, gpu_checks, host_checks
from gpubalance.jobs.doctor.on_devices import (
    Finding,
    checks_on_devices,
    survey,
    tensorflow_devices,
)
from gpubalance.jobs.doctor.software import inspect, software_checks
from gpubalance.jobs.events import Doing, Watch
from gpubalance.results.checkup import Check, Checkup, CopyTime
from gpubalance.results.common import now
from gpubalance.settings.device import Device, JointProfile
from gpubalance.workers.worker_group import WorkerGroup

_INSTEAD = 2  # plain CPU devices, used if there is no GPU


@dataclass
class Patient:
    """The machine that is examined, as far as it is known.

    `gpus` are those that were asked for, `devices` those on which work is tried.
    """

    watch: Watch
    reading: Reading | None = None
    gpus: tuple[Gpu, ...] = ()
    devices: tuple[Device, ...] = ()
    joint: JointProfile = field(default_factory=JointProfile)

    def findings(
        self, simulated: Machine | None, gpus: Sequence[str] | None, model: str | None
    ) -> Iterator[Finding]:
        """All checks, each after those that it depends on."""
        if simulated is not None:
            self.joint = simulated.joint
            self.devices = select(gpus, simulated.devices)
            yield skipped("no-gpu", "not checked: --simulate")
        else:
            yield from self._gpus(gpus)
        yield from host_checks(gpus=len(self.gpus))
        with WorkerGroup(self.devices, purpose="check") as worker_group:
            devices = self.devices
            self.devices = ()  # until TensorFlow has them
            yield from guarded("tensorflow", self._software(worker_group, devices))
            if self.devices and not devices[0].simulated:
                yield from guarded(
                    "tensorflow-devices", self._survey(worker_group, devices)
                )
            yield from checks_on_devices(
                worker_group, self.devices, self.joint, model, self.watch
            )

    def _gpus(self, names: Sequence[str] | None) -> Iterator[Check]:
        self.watch(Doing("reading the GPUs through NVML"))
        self.reading = read_gpus()
        self.gpus = self.reading.gpus
        # An unusable one too: that is what a doctor is for.
        every = [gpu.device for gpu in self.reading.gpus]
        if names and every:
            uuids = {device.uuid for device in select(names, every)}
            self.gpus = tuple(gpu for gpu in self.reading.gpus if gpu.uuid in uuids)
        yield from driver_checks(self.reading)
        if self.gpus:
            self.watch(Doing("reading the state and settings of each GPU"))
            yield from gpu_checks(self.gpus)
        self.devices = tuple(device for gpu in self.gpus for device in gpu.devices)
        if not self.devices:
            self.devices, self.joint = simulated_devices(_INSTEAD)
            none = "none can be used" if every else "none here"
            instead = f"the other checks use {_INSTEAD} simulated devices"
            yield skipped(
                "no-gpu", f"{none}: {instead}. --simulate checks without a GPU"
            )

    def _software(
        self, worker_group: WorkerGroup, devices: tuple[Device, ...]
    ) -> Iterator[Check]:
        self.watch(Doing("loading TensorFlow and its libraries"))
        inspected = inspect(worker_group)
        self.devices = devices
        yield from software_checks(inspected, self.reading, self.gpus)

    def _survey(
        self, worker_group: WorkerGroup, devices: tuple[Device, ...]
    ) -> Iterator[Check]:
        self.devices = ()
        self.watch(Doing("asking TensorFlow which GPUs it can use"))
        surveyed = survey(worker_group)
        self.devices = tuple(
            device for device in devices if device.uuid not in surveyed.missing
        )
        yield from tensorflow_devices(surveyed, devices)


def doctor(
    simulated: Machine | None,
    gpus: Sequence[str] | None,
    model: str | None,
    watch: Watch,
) -> Checkup:
    """Checks the machine. Faults are listed in the checkup, never raised.

    Without a usable GPU the work is tried on plain CPU devices, and with `simulated` ones on these.
    Raises UsageError for a device that is not here, and Interrupted with the checks so far.
    """
    patient = Patient(watch)
    findings: list[Finding] = []
    try:
        for finding in patient.findings(simulated, gpus, model):
            findings.append(finding)
    except KeyboardInterrupt as interrupt:
        partial = None
        if findings:
            partial = _checkup(patient.devices, findings, complete=False)
        remedy = "what was checked is above"
        raise Interrupted.by(interrupt, partial=partial, remedy=remedy) from None
    return _checkup(patient.devices, findings, complete=True)


def _checkup(
    devices: tuple[Device, ...], findings: Sequence[Finding], *, complete: bool
) -> Checkup:
    """The checkup of what was found, of these devices."""
    checks = []
    times = []
    reduced = None
    for finding in findings:
        if isinstance(finding, Check):
            checks.append(finding)
        elif isinstance(finding, CopyTime):
            times.append(finding)
        else:
            reduced = finding
    return Checkup(
        created=now(),
        devices=devices,
        checks=tuple(checks),
        copies=tuple(times),
        all_reduce=reduced,
        complete=complete,
    )
