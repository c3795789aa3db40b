"""`doctor` as a whole: checks of the machine, first what everything depends on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpubalance.devices.machine import Machine, read_gpus
from gpubalance.devices.nvml import Gpu, Reading
from gpubalance.devices.profile import simulated_devices
from gpubalance.devices.selection import select
from gpubalance.errors import EnvironmentFault, Interrupted, UsageError
from gpubalance.jobs.doctor.check import check, failed, guarded, ok, skipped
from gpubalance.jobs.doctor.machine import (
    driver_checks,
    gpu_checks,
    host_checks,
    inspect,
    software_checks,
)
from gpubalance.jobs.doctor.on_devices import (
    Finding,
    checks_on_devices,
    survey,
    tensorflow_devices,
)
from gpubalance.jobs.events import Doing, Watch
from gpubalance.numbers.units import format_duration
from gpubalance.results.checkup import Check, Checkup, Checkups, CopyTime
from gpubalance.results.common import now
from gpubalance.settings.device import Device, Host, JointProfile
from gpubalance.workers.hosts import Ways, ask, try_ways
from gpubalance.workers.worker_group import WorkerGroup

# A healthy host takes a minute; a step that hangs has its deadline on the host
_WITHIN_S = 900.0
_CLOCK = "clock"
_CONNECTIONS = "connections"
_OFF_S = 5.0
_WHY_CLOCKS = (
    "times of files and logs mislead, and munge, which authenticates Slurm's jobs, "
    "refuses a difference of 5 minutes"
)


def doctor_of(
    hosts: Sequence[Host],
    words: Sequence[str],
    gpus: Sequence[str] | None,
    watch: Watch,
) -> Checkups:
    """What `gpubalance doctor` with these words finds on each host.

    Of `gpus`, `alpha:0` is GPU 0 of alpha; hosts without one are left out then. Faults, an
    unreachable host among them, are in the result. Raises UsageError for a device on none of the
    hosts.
    """
    options = _options(hosts, gpus)
    check = "check themselves" if len(options) > 1 else "checks itself"
    watch(Doing(f"{', '.join(options)} {check}"))
    commands = {
        host: ["doctor", "--json", *words, *own] for host, own in options.items()
    }
    try:
        answers = ask(commands, Checkup, _WITHIN_S)
        well = [host for host, answer in answers.items() if isinstance(answer, Checkup)]
        between = check_ways(well, watch) if well else {}
    except KeyboardInterrupt as interrupt:
        raise Interrupted.by(interrupt, remedy="nothing was checked yet") from None
    checkups = []
    for host, answer in answers.items():
        if isinstance(answer, EnvironmentFault):
            checks: tuple[Check, ...] = (failed("host", answer),)
            answer = Checkup(created=now(), host=host, devices=(), checks=checks)
        else:
            checks = (*answer.checks, *between.get(host, ()))
            answer = answer.model_copy(update={"checks": checks})
        checkups.append(answer)
    return Checkups(created=now(), hosts=tuple(checkups))


def _options(
    hosts: Sequence[Host], gpus: Sequence[str] | None
) -> dict[Host, list[str]]:
    """The option that names each host's own GPUs; all hosts without one if none are named."""
    if not gpus:
        return {host: [] for host in hosts}
    options: dict[Host, list[str]] = {}
    for name in gpus:
        host, _, number = name.rpartition(":")
        if host not in hosts:
            raise UsageError(
                f"there is no device {name!r} on {', '.join(hosts)}",
                remedy=f"such as {hosts[0]}:0",
            )
        options.setdefault(host, ["--gpus"]).append(number)
    return options


def check_ways(hosts: Sequence[Host], watch: Watch) -> Mapping[Host, Iterable[Check]]:
    """The checks of each host beside the others, which answered a moment ago. Raises nothing."""
    watch(Doing(f"{', '.join(hosts)} connect to each other"))
    began_s = time.time()
    try:
        found = try_ways(hosts)
    except EnvironmentFault as error:
        return {hosts[0]: [failed(_CONNECTIONS, error)]}
    ended_s = time.time()
    checks: dict[Host, list[Check]] = {}
    ways = [own for own in found.values() if isinstance(own, Ways)]
    for host, own in found.items():
        if isinstance(own, EnvironmentFault):
            checks[host] = [failed(_CONNECTIONS, own)]
            continue
        checks[host] = [_clock(own.clock_s, began_s, ended_s)]
        others = [other for other in ways if other is not own]
        if others:
            checks[host].append(_connections(own, others))
    return checks


def _clock(there_s: float, began_s: float, ended_s: float) -> Check:
    """The check of a clock that was read between two looks at the one here."""
    behind_s = began_s - there_s
    ahead_s = there_s - ended_s
    off_s = max(behind_s, ahead_s)
    if off_s <= _OFF_S:
        return ok(_CLOCK, "within some seconds of the clock here")
    where = "behind" if behind_s > ahead_s else "ahead of"
    detail = f"at least {format_duration(off_s)} {where} the clock here: {_WHY_CLOCKS}"
    return check(
        _CLOCK, "warning", detail, "on that host: `sudo timedatectl set-ntp true`"
    )


def _connections(own: Ways, others: Sequence[Ways]) -> Check:
    """The check of the others' connections to a port of this host, as TensorFlow takes one."""
    address, _, port = own.address.rpartition(":")
    cut_off = [other for other in others if own.address in other.unreached]
    if not cut_off:
        names = ", ".join(other.host for other in others)
        return ok(_CONNECTIONS, f"{names} reached port {port} of {address}")
    problems = [f"{other.host}: {other.unreached[own.address]}" for other in cut_off]
    detail = f"port {port} of {address} cannot be reached from {', '.join(problems)}"
    allowed = [
        f"`sudo ufw allow from {other.address.rpartition(':')[0]}`" for other in cut_off
    ]
    remedy = (
        f"open {own.host}'s firewall on all ports, because TensorFlow picks a free "
        f"one: {', '.join(allowed)}\n"
        f"if {address} is in the wrong network, correct it in /etc/hosts on {own.host}"
    )
    return check(_CONNECTIONS, "failure", detail, remedy)


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
    Raises UsageError for a GPU that is not among those here, and Interrupted with the checks so
    far. If no GPU can be read at all, the failure of the driver's check says why instead.
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
