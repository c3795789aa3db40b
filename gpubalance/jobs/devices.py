"""`devices`: the GPUs here, and which of them TensorFlow can use."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.devices.hosts import are_reached
from gpubalance.devices.machine import (
    Machine,
    environment_here,
    find_machine,
    machine_of,
    read_gpus,
)
from gpubalance.devices.nvml import Reading
from gpubalance.errors import EnvironmentFault, UsageError
from gpubalance.jobs.events import Doing, Watch
from gpubalance.results.common import Environment
from gpubalance.settings.device import Device, Host, JointProfile, hosts_of
from gpubalance.settings.record import Record
from gpubalance.workers.hosts import ask
from gpubalance.workers.messages import Survey, Surveyed
from gpubalance.workers.worker_group import WorkerGroup


class Listing(Record):
    """The GPUs as NVML and TensorFlow see them, or the simulated devices.

    `host` is null for the one it runs on.
    """

    kind: str = "devices"
    host: Host | None = None
    environment: Environment | None
    nvidia: Reading | None
    simulated: tuple[Device, ...] | None


class Listings(Record):
    """The GPUs of each host that answered."""

    kind: str = "devices"
    hosts: tuple[Listing, ...]


def list_devices_of(hosts: Sequence[Host]) -> tuple[Listings, list[EnvironmentFault]]:
    """Each host's own listing, and an error for each host that has no GPU or did not answer."""
    listings, errors = _answers(hosts)
    for listing in listings:
        reading = listing.nvidia
        if reading and reading.problem:
            message = f"{listing.host}: {reading.problem}"
            errors.append(EnvironmentFault(message, remedy=reading.remedy or ""))
    return Listings(hosts=tuple(listings)), errors


def _answers(hosts: Sequence[Host]) -> tuple[list[Listing], list[EnvironmentFault]]:
    listings = []
    errors = []
    for answer in ask(dict.fromkeys(hosts, ("devices", "--json")), Listing).values():
        if isinstance(answer, EnvironmentFault):
            errors.append(answer)
        else:
            listings.append(answer)
    return listings, errors


def machine_over(hosts: Sequence[Host]) -> Machine:
    """The GPUs of these hosts, as each lists them.

    Raises EnvironmentFault if no GPU can be used on one of them or it can't be reached, and
    UsageError if two are one.
    """
    listings, errors = list_devices_of(hosts)
    if errors:
        raise errors[0]
    devices: dict[str, Device] = {}  # by UUID
    drivers = []
    for listing in listings.hosts:
        machine = machine_of(listing.nvidia or Reading(), f"{listing.host}: ")
        drivers.append(machine.driver or "unknown")
        for device in machine.devices:
            if device.uuid in devices:
                other = devices[device.uuid].host
                raise UsageError(
                    f"{other} and {listing.host} are one machine", remedy="name it once"
                )
            devices[device.uuid] = device.model_copy(update={"host": listing.host})
    return Machine(
        tuple(devices.values()), JointProfile(), ", ".join(dict.fromkeys(drivers))
    )


def devices_left(
    devices: Sequence[Device],
) -> tuple[frozenset[int], list[EnvironmentFault]]:
    """The numbers of those devices that can be used now, and why hosts can't be reached."""
    hosts = [host for host in hosts_of(devices) if host is not None and are_reached()]
    if not hosts and devices[0].simulated:
        return frozenset(range(len(devices))), []
    errors: list[EnvironmentFault] = []
    if hosts:
        listings, errors = _answers(hosts)
    else:
        listings = [list_devices(None, (), lambda _: None)]
    answering = {listing.host for listing in listings}
    usable = set[str]()
    for listing in listings:
        if listing.nvidia is not None:
            for gpu in listing.nvidia.gpus:
                usable.update(device.uuid for device in gpu.devices)
    left = set()
    for number, device in enumerate(devices):
        is_there = device.uuid in usable
        if device.simulated:
            is_there = device.host in answering
        if is_there:
            left.add(number)
    return frozenset(left), errors


def list_devices(
    simulate: str | None, hosts: Sequence[Host], watch: Watch, time_scale: float = 1.0
) -> Listing:
    """Asks NVML for the GPUs, and TensorFlow in a worker which of them work.

    Or lists simulated ones on these hosts: raises what `find_machine` does for them.
    """
    if simulate is not None:
        simulated = find_machine(simulate, hosts).slowed(time_scale).devices
        return Listing(
            environment=environment_here(None), nvidia=None, simulated=simulated
        )
    reading = read_gpus()
    usable = [gpu.device for gpu in reading.gpus if not gpu.unusable]
    if usable:
        watch(Doing("asking TensorFlow which GPUs it can use"))
        missing = _missing(usable)
        gpus = []
        for gpu in reading.gpus:
            unusable = gpu.unusable or missing.get(gpu.uuid)
            gpus.append(gpu.model_copy(update={"unusable": unusable}))
        reading = reading.model_copy(update={"gpus": tuple(gpus)})
    environment = environment_here(reading.driver_version)
    return Listing(environment=environment, nvidia=reading, simulated=None)


def _missing(gpus: Sequence[Device]) -> dict[str, str]:
    """The reason for each GPU that TensorFlow can't use, by UUID."""
    with WorkerGroup(gpus, purpose="survey") as worker_group:
        worker_group.start()
        try:
            with worker_group.worker() as worker:
                surveyed = worker.ask(Survey(devices=worker.devices), Surveyed)
        except EnvironmentFault as error:  # TensorFlow itself does not work
            return {gpu.uuid: error.message for gpu in gpus}
        return surveyed.missing
