"""`doctor` as a whole: first it checks what everything depends on, then what depends on that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpubalance.devices.gpus import Gpu, Reading
from gpubalance.devices.link import watched_links
from gpubalance.devices.machine import read_gpus, select
from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import EnvironmentFault, Interrupted, UsageError
from gpubalance.jobs.doctor.check import failed, guarded, skipped
from gpubalance.jobs.doctor.machine import driver_checks, gpu_checks, host_checks, software_checks
from gpubalance.jobs.doctor.work import DoctorSteps, all_reduce, copies, links, tensorflow_devices
from gpubalance.jobs.events import Doing, Watch
from gpubalance.results.checkup import AllReduceTime, Check, Checkup, Checkups, CopyTime
from gpubalance.results.common import now
from gpubalance.settings.choices import default_model
from gpubalance.settings.device import Device, Host, JointProfile, hosts_of
from gpubalance.settings.settings import Settings
from gpubalance.workers.hosts import ask
from gpubalance.workers.messages import Inspect, Inspected, Survey, Surveyed
from gpubalance.workers.party import Party

_INSTEAD = 2  # plain CPU devices, used if there is no GPU
# Those of the model `probe`: what the all-reduce moves if no training step has told the size.
_GRADIENT_BYTES = 78_900_000 * 4
_WITHIN_S = 900.0  # a healthy host takes a minute; a step that hangs has its deadline on the host

_BETWEEN = ("peer-to-peer", "all-reduce")

Finding = Check | CopyTime | AllReduceTime


def doctor(
    simulate: str | None, gpus: Sequence[str] | None, model: str | None, watch: Watch
) -> Checkup:
    """Checks the machine. Faults are listed in the checkup, never raised.

    Without a usable GPU, or with `simulate`, the work is tried on simulated devices. Raises
    UsageError for a device that is not here, BadInput for a bad profile, and Interrupted with the
    checks so far.
    """
    patient, found = _Patient(watch), list[Finding]()
    try:
        for one in patient.findings(simulate, gpus, model):
            found.append(one)
    except KeyboardInterrupt as interrupt:
        partial = patient.checkup(found, complete=False) if found else None
        raise Interrupted.by(
            interrupt, partial=partial, remedy="what was checked is above"
        ) from None
    return patient.checkup(found, complete=True)


@dataclass
class _Patient:
    """The machine that is examined, as far as it is known: its GPUs, and the devices on which work
    is tried.
    """

    watch: Watch
    reading: Reading | None = None
    gpus: tuple[Gpu, ...] = ()
    devices: tuple[Device, ...] = ()
    joint: JointProfile = field(default_factory=JointProfile)

    def checkup(self, found: Sequence[Finding], *, complete: bool) -> Checkup:
        """The checkup of what was found."""
        return Checkup(
            created=now(),
            devices=self.devices,
            checks=tuple(one for one in found if isinstance(one, Check)),
            copies=tuple(one for one in found if isinstance(one, CopyTime)),
            all_reduce=next((one for one in found if isinstance(one, AllReduceTime)), None),
            complete=complete,
        )

    def findings(
        self, simulate: str | None, gpus: Sequence[str] | None, model: str | None
    ) -> Iterator[Finding]:
        """All checks, each after those that it depends on."""
        yield from self._machine(simulate, gpus)
        yield from host_checks(gpus=len(self.gpus))
        with Party(self.devices, purpose="check") as party:
            devices, self.devices = self.devices, ()  # until TensorFlow has them
            yield from guarded("tensorflow", self._software(party, devices))
            if self.devices and not devices[0].simulated:
                yield from guarded("tensorflow-devices", self._survey(party, devices))
            if self.devices:
                yield from self._work(party, model)
            else:
                yield from _all_skipped(
                    "not tried: TensorFlow has none of the devices", "training-step", *_BETWEEN
                )

    def _machine(self, simulate: str | None, gpus: Sequence[str] | None) -> Iterator[Check]:
        if simulate is not None:
            devices, self.joint = simulated_devices(simulate)
            self.devices = select(gpus, devices)
            yield skipped("no-gpu", "not looked at: --simulate")
            return
        self.watch(Doing("reading the GPUs through NVML"))
        self.reading = reading = read_gpus()
        # An unusable one too: that is what a doctor is for.
        every = [gpu.device for gpu in reading.gpus]
        named = {device.uuid for device in (select(gpus, every) if gpus and every else every)}
        self.gpus = tuple(gpu for gpu in reading.gpus if gpu.uuid in named)
        yield from driver_checks(reading)
        if self.gpus:
            self.watch(Doing("reading how each GPU is set and doing"))
            yield from gpu_checks(self.gpus)
        self.devices = tuple(device for gpu in self.gpus for device in gpu.devices)
        if not self.devices:
            self.devices, self.joint = simulated_devices(_INSTEAD)
            none = "none can be used" if every else "none here"
            instead = f"the rest is checked on {_INSTEAD} simulated devices"
            yield skipped("no-gpu", f"{none}: {instead}. --simulate asks for no GPU")

    def _software(self, party: Party, devices: tuple[Device, ...]) -> Iterator[Check]:
        self.watch(Doing("loading TensorFlow and its libraries"))
        inspected = party.ask(lambda worker: worker.ask(Inspect(), Inspected))
        self.devices = devices
        yield from software_checks(inspected, self.reading, self.gpus)

    def _survey(self, party: Party, devices: tuple[Device, ...]) -> Iterator[Check]:
        self.devices = ()
        self.watch(Doing("asking TensorFlow which of the GPUs it can use"))
        surveyed = party.ask(lambda worker: worker.ask(Survey(devices=worker.devices), Surveyed))
        self.devices = tuple(device for device in devices if device.uuid not in surveyed.missing)
        yield from tensorflow_devices(surveyed, devices)

    def _work(self, party: Party, model: str | None) -> Iterator[Finding]:
        devices, watch = self.devices, self.watch
        steps = DoctorSteps(
            Settings(model=model or default_model(simulated=devices[0].simulated)), watch
        )
        gpus = [device for device in devices if device.told_by_nvml]
        with watched_links([device.uuid for device in gpus]) as seen:
            yield from steps.checks(devices, self.joint)
        yield from guarded("pcie-link", links(gpus, seen))
        if any(device.uuid.startswith("MIG-") for device in devices):
            devices = devices[:1]  # CUDA shows a process one MIG slice only
        if len(devices) == 1:
            yield from _all_skipped("there is one device", *_BETWEEN)
            return
        if len(hosts_of(devices)) > 1:
            yield from _all_skipped(
                "not tried: the step has summed its gradients between the hosts", *_BETWEEN
            )
            return
        party.regroup(devices)
        yield from guarded("peer-to-peer", copies(party, devices, watch))
        yield from guarded(
            "all-reduce", all_reduce(party, devices, steps.size or _GRADIENT_BYTES, watch)
        )


def _all_skipped(why: str, *topics: str) -> Iterator[Check]:
    return (skipped(topic, why) for topic in topics)


def doctor_of(
    hosts: Sequence[Host], words: Sequence[str], gpus: Sequence[str] | None, watch: Watch
) -> Checkups:
    """What `gpubalance doctor` with these words finds on each host, run on all at once; `alpha:0`
    is GPU 0 of alpha.

    Faults, an unreachable host among them, are in the result. Raises UsageError for a device on
    none of the hosts.
    """
    named: dict[Host, list[str]] = {} if gpus else {host: [] for host in hosts}
    for one in gpus or ():
        host, _, number = one.rpartition(":")
        if host not in hosts:
            raise UsageError(
                f"there is no device {one!r} on {', '.join(hosts)}", remedy=f"such as {hosts[0]}:0"
            )
        named.setdefault(host, ["--gpus"]).append(number)
    watch(Doing(f"{', '.join(named)} {'check themselves' if len(named) > 1 else 'checks itself'}"))
    try:
        answers = ask(
            {host: ["doctor", "--json", *words, *own] for host, own in named.items()},
            Checkup,
            _WITHIN_S,
        )
    except KeyboardInterrupt as interrupt:
        raise Interrupted.by(interrupt, remedy="nothing is known yet") from None
    found = [
        Checkup(created=now(), host=host, devices=(), checks=(failed("host", answer),))
        if isinstance(answer, EnvironmentFault)
        else answer
        for host, answer in answers.items()
    ]
    return Checkups(created=now(), hosts=tuple(found))
