"""`doctor` as a whole: the checkup of the machine, from what its checks find."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.devices.machine import Machine
from gpubalance.errors import Interrupted
from gpubalance.jobs.doctor.on_devices import Finding
from gpubalance.jobs.doctor.patient import Patient
from gpubalance.jobs.events import Watch
from gpubalance.results.checkup import Check, Checkup, CopyTime
from gpubalance.results.common import now
from gpubalance.settings.device import Device


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
