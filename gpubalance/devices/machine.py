"""The devices that a command works on: GPUs through NVML, or simulated ones."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpubalance.devices.gpus import Gpu, GpuProcess, Reading, normal_bus_id
from gpubalance.devices.nvml import read, without
from gpubalance.devices.profile import OPTION, simulated_devices
from gpubalance.errors import EnvironmentFault, UsageError
from gpubalance.remedies import known_error, match
from gpubalance.results.common import Warning_
from gpubalance.settings.cluster import tf_config_of
from gpubalance.settings.device import Device, JointProfile, hosts_of
from gpubalance.system.deadlines import within_or
from gpubalance.system.lock import Lock
from gpubalance.system.versions import software, too_old
from gpubalance.text import clean

_UUID_KIND = re.compile(r"^(gpu|mig)-")
_SHORTEST_PREFIX = 3
_SIMULATE = "without a GPU: {option}FILE (a profile, see configs/) or {option}N (plain CPU devices)"


@dataclass(frozen=True)
class Machine:
    """All devices here, what a joint run adds to simulated ones, the driver's version, and NVML's
    GPUs.
    """

    devices: tuple[Device, ...]
    joint: JointProfile
    driver: str | None
    gpus: tuple[Gpu, ...] = ()

    def select(self, gpus: Sequence[str] | None) -> tuple[Device, ...]:
        """The devices that --gpus names, all for None. Raises UsageError if one is not here or
        can't be used.
        """
        try:
            return select(gpus, self.devices)
        except UsageError as error:
            why = [f"GPU {gpu.index} can't be used: {gpu.unusable}" for gpu in self._left_out]
            error.remedy = "\n".join([error.remedy, *why])
            raise

    @property
    def _left_out(self) -> list[Gpu]:
        """The GPUs that can't be used, not even a MIG slice of them."""
        return [gpu for gpu in self.gpus if gpu.unusable and not gpu.devices]

    def warnings(self, devices: Sequence[Device], *, strict: bool) -> tuple[Warning_, ...]:
        """What else on the machine may change these devices' figures.

        Raises EnvironmentFault for a GPU that others use, if `strict`, and BadInput for a malformed
        TF_CONFIG.
        """
        used = tuple(self._in_use(devices))
        if used and strict:
            others = "; ".join(warning.message for warning in used)
            raise EnvironmentFault(
                others, remedy="end what you don't need there, or leave out --strict"
            )
        missing = [
            Warning_(
                code="gpu-left-out",
                message=(
                    f"GPU {gpu.index} ({gpu.name or 'unknown GPU'}) is left out: {gpu.unusable}"
                ),
                next=(
                    "name the devices that you mean (--gpus), or make it usable: gpubalance "
                    "doctor says how"
                ),
            )
            for gpu in self._left_out
            if set(devices) == set(self.devices)  # whoever names devices knows
        ]
        return (*_cluster_ignored(), *missing, *used)

    def _in_use(self, devices: Sequence[Device]) -> Iterator[Warning_]:
        """A warning for each device on which other processes compute or hold memory. They are left
        alone.

        A MIG slice shows its GPU's processes, as NVML does not say which slice they are on.
        """
        there = {gpu.index: gpu.processes or () for gpu in self.gpus}
        for device in devices:
            others = there.get(device.index)
            if others:
                yield Warning_(
                    code="gpu-in-use",
                    message=f"{device.label} is used by {', '.join(map(_process_text, others))}",
                    next=(
                        "figures and limits cover only what is left: end what you don't need, and "
                        "measure again"
                    ),
                )


def _process_text(process: GpuProcess) -> str:
    """`process 4242 (python train.py, 3000 MiB)`."""
    size = (
        "memory not told"
        if process.memory_bytes is None
        else f"{process.memory_bytes / (1 << 20):.0f} MiB"
    )
    name = f"{clean(process.name, 40)}, " if process.name else ""
    return f"process {process.pid} ({name}{size})"


def _cluster_ignored() -> Iterator[Warning_]:
    """A warning if the environment names a cluster. Whoever set one that can't be read believes
    that it works.
    """
    found = tf_config_of(os.environ)
    if found is not None:
        count = sum(map(len, found.cluster.values()))
        yield Warning_(
            code="tf-config-ignored",
            message=(
                f"TF_CONFIG names a cluster of {count}: it is ignored, and this host is measured "
                "alone"
            ),
            next="nothing to do; a script that loads a plan for several hosts goes by it",
        )


@contextmanager
def held(devices: Sequence[Device]) -> Iterator[None]:
    """Locks these GPUs against this user's other gpubalance processes while the block runs.

    Simulated devices need no lock, and other hosts' devices get none. Raises InUse if another
    process has a GPU.
    """
    with ExitStack() as stack:
        for device in devices:
            if device.told_by_nvml:
                stack.callback(Lock(device.uuid, f"{device.label} ({device.name})").release)
        yield


def read_gpus() -> Reading:
    """The GPUs through NVML; those that CUDA_VISIBLE_DEVICES hides are marked as unusable."""
    return mark_hidden(within_or(without("nvml-hangs"), read), os.environ)


def find_machine(
    simulate: int | str | Path | None, hosts: Sequence[str] = (), *, option: str = OPTION
) -> Machine:
    """The devices here, or simulated ones, which may be on these `hosts`: a number of plain ones is
    on each of them.

    Errors call `simulate` by that `option`.

    Raises EnvironmentFault if no GPU can be used, BadInput for a bad profile, and UsageError for
    one whose devices are not on these hosts.
    """
    if simulate is not None:
        devices, joint = simulated_devices(simulate, hosts, option)
        check_hosts(devices, hosts, "the profile's")
        return Machine(devices, joint, None)
    return machine_of(read_gpus(), option=option)


def check_hosts(devices: Sequence[Device], hosts: Sequence[str], whose: str) -> None:
    """Raises UsageError if hosts are given and these devices are not on them."""
    named = [host for host in hosts_of(devices) if host is not None]
    if hosts and not named:
        raise UsageError(
            f"--hosts is given, but {whose} devices name no host",
            remedy='a profile gives each a host = "…"',
        )
    missing = [host for host in named if host not in hosts] if hosts else []
    if missing:
        raise UsageError(f"--hosts has no {', '.join(missing)}, which {whose} devices are on")


def machine_of(reading: Reading, whose: str = "", option: str = OPTION) -> Machine:
    """The GPUs that can be used. Raises EnvironmentFault, which begins with `whose` they are, if
    there are none.
    """
    simulate = _SIMULATE.format(option=option)
    if reading.problem:
        cause = known_error(reading.code).cause if reading.code else ""
        raise EnvironmentFault(
            whose + reading.problem, cause=cause, remedy=f"{reading.remedy}\n{simulate}"
        )
    old = too_old(reading.driver_version, reading.cuda_driver_version, software().cuda)
    if old is not None:
        row = known_error("driver-too-old")
        raise EnvironmentFault(whose + old, cause=row.cause, remedy=f"{row.remedy}\n{simulate}")
    usable = tuple(device for gpu in reading.gpus for device in gpu.devices)
    if not usable:
        why = "; ".join(f"GPU {gpu.index}: {gpu.unusable}" for gpu in reading.gpus)
        found = (match(gpu.unusable or "") for gpu in reading.gpus)
        remedies = dict.fromkeys(row.remedy for row in found if row)
        raise EnvironmentFault(
            f"{whose}no GPU can be used: {why}", remedy="\n".join([*remedies, simulate])
        )
    return Machine(usable, JointProfile(), reading.driver_version, reading.gpus)


_VARIABLE = "CUDA_VISIBLE_DEVICES"


def mark_hidden(reading: Reading, environment: Mapping[str, str]) -> Reading:
    """The reading with each hidden GPU marked as unusable, and why.

    The list is read as CUDA reads it: up to the first entry that names no GPU. UUIDs, or their
    beginnings, are exact. Numbers follow CUDA's order, which is NVML's only with
    CUDA_DEVICE_ORDER=PCI_BUS_ID or if all GPUs are of one model; otherwise a number's meaning can't
    be known here, and every GPU is marked with what to set.
    """
    listed = environment.get(_VARIABLE)
    if listed is None or not reading.gpus:
        return reading
    entries = [entry.strip() for entry in listed.split(",")]
    by_number = any(entry.isdigit() for entry in entries)
    if by_number and not _numbered_as_nvml(reading, environment):
        why = (
            f"{_VARIABLE}={listed} means CUDA's order, fastest first: set UUIDs, or "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
        return _marked(reading, set(), why)
    shown: set[str] = set()
    for entry in entries:
        named = [gpu for gpu in reading.gpus if _names(entry, gpu)]
        if len(named) != 1:
            break
        shown.add(named[0].uuid)
    return _marked(reading, shown, f"hidden by {_VARIABLE}={listed}")


def _numbered_as_nvml(reading: Reading, environment: Mapping[str, str]) -> bool:
    alike = len({gpu.name for gpu in reading.gpus}) == 1
    return alike or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


def _names(entry: str, gpu: Gpu) -> bool:
    if entry.isdigit():
        # `int` rejects thousands of digits
        return entry.lstrip("0") == (str(gpu.index) if gpu.index else "")
    uuids = [gpu.uuid, *(piece.uuid for piece in gpu.mig_slices)]
    return len(entry) > len("GPU-") and any(
        uuid.lower().startswith(entry.lower()) for uuid in uuids
    )


def _marked(reading: Reading, shown: set[str], why: str) -> Reading:
    gpus = [
        gpu
        if gpu.uuid in shown
        else gpu.model_copy(update={"unusable": gpu.unusable or why, "mig_slices": ()})
        for gpu in reading.gpus
    ]
    return reading.model_copy(update={"gpus": tuple(gpus)})


def select(tokens: Sequence[str] | None, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices that `tokens` name, in the tokens' order; all devices for None.

    A token is an index (`alpha:0` on a named host), a bus id, a UUID, or the beginning of a UUID:
    at least three characters after an optional `GPU-`. Raises UsageError, with the candidates, for
    a token that names no device or several, and for a device named twice.
    """
    if tokens is None:
        return tuple(devices)
    if not tokens:
        raise UsageError("no device is named", remedy=_choice(devices))
    chosen: list[Device] = []
    for token in tokens:
        device = _only(token, devices)
        if any(device.uuid == earlier.uuid for earlier in chosen):
            raise UsageError(f"{device.label} is named twice", remedy="name each device once")
        chosen.append(device)
    return tuple(chosen)


def _only(token: str, devices: Sequence[Device]) -> Device:
    shown = clean(token, limit=80)
    found = _matches(token.strip().casefold(), devices)
    if not found:
        raise UsageError(f"there is no device {shown!r}", remedy=_choice(devices))
    if len(found) > 1:
        raise UsageError(f"{shown!r} names {len(found)} devices", remedy=_choice(found))
    return found[0]


def _matches(token: str, devices: Sequence[Device]) -> list[Device]:
    """The devices with that index, else that bus id, else that UUID, else a UUID that begins so.

    The order matters: `123` may be an index and the beginning of a UUID, and one UUID may be the
    beginning of another.
    """
    bus_id = normal_bus_id(token)
    begins = _UUID_KIND.sub("", token)
    long_enough = len(begins) >= _SHORTEST_PREFIX
    for readings in (
        [d for d in devices if token == d.called.casefold()],
        [d for d in devices if bus_id is not None and bus_id == d.bus_id],
        [d for d in devices if token == d.uuid.casefold()],
        [d for d in devices if long_enough and _begins(d.uuid.casefold(), token)],
    ):
        if readings:
            return readings
    return []


def _begins(uuid: str, token: str) -> bool:
    return uuid.startswith(token) or _UUID_KIND.sub("", uuid).startswith(token)


def _choice(devices: Iterable[Device]) -> str:
    rows = [f"  {d.called}  {clean(d.name)}  {clean(d.uuid)}" for d in devices]
    return (
        "\n".join(["name one of these by index, UUID or bus id:", *rows])
        if rows
        else "there are no devices here"
    )
