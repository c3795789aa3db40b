"""The devices that a command works on, and the machine and software around them."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from gpubalance._version import __version__
from gpubalance.devices.nvml import Gpu, GpuProcess, Reading, read, without
from gpubalance.devices.profile import IN_A_SCRIPT, OPTION, simulated_devices
from gpubalance.devices.selection import select
from gpubalance.errors import EnvironmentFault, UsageError
from gpubalance.remedies import known_error, match
from gpubalance.results.common import Environment, Warning_
from gpubalance.results.warnings import warning
from gpubalance.settings.cluster import tf_config_of
from gpubalance.settings.device import Device, JointProfile, hosts_of
from gpubalance.system.deadlines import within_or
from gpubalance.system.state import Lock
from gpubalance.system.versions import software, too_old, untested
from gpubalance.text import clean

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_SIMULATE = (
    "without a GPU: {option}{profile} (a profile) or {option}N (plain CPU devices)"
)
_PROFILE = {OPTION: "gtx1080ti-gtx1080", IN_A_SCRIPT: "'gtx1080ti-gtx1080'"}
# What slows a profile is called beside what names it
_TIME_SCALE = {OPTION: "--time-scale ", IN_A_SCRIPT: "time_scale="}


def mark_hidden(reading: Reading, environment: Mapping[str, str]) -> Reading:
    """The reading with each hidden GPU marked as unusable, and why; hidden MIG slices are left out.

    The list is read as CUDA reads it: up to the first entry that names no GPU. UUIDs, or their
    beginnings, are exact. Numbers follow CUDA's order, which is NVML's only with
    CUDA_DEVICE_ORDER=PCI_BUS_ID or if all GPUs are of one model; otherwise a number's meaning can't
    be known here, and every GPU is marked with what to set, unless all numbers are listed.
    """
    listed = environment.get(_VARIABLE)
    if listed is None:
        return reading
    entries = [entry.strip() for entry in listed.split(",")]
    shown: list[str] = []
    for entry in entries:
        named = [uuid for gpu in reading.gpus for uuid in _named(entry, gpu)]
        if len(named) != 1:
            break
        shown += named
    numbers = [entry.isdigit() for entry in entries]
    lists_all = all(numbers) and set(shown) == {gpu.uuid for gpu in reading.gpus}
    if any(numbers) and not lists_all and not _numbered_as_nvml(reading, environment):
        why = (
            f"{_VARIABLE}={listed} counts in CUDA's order, fastest first: use UUIDs, "
            "or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
        return _marked(reading, (), why)
    return _marked(reading, shown, f"hidden by {_VARIABLE}={listed}")


def _numbered_as_nvml(reading: Reading, environment: Mapping[str, str]) -> bool:
    models = {gpu.name for gpu in reading.gpus}
    return len(models) == 1 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


def _named(entry: str, gpu: Gpu) -> list[str]:
    """The UUIDs of the GPU and its MIG slices that an entry names."""
    if entry.isdigit():
        # As text, as `int` rejects thousands of digits
        return [gpu.uuid] if (entry.lstrip("0") or "0") == str(gpu.index) else []
    if len(entry) <= len("GPU-"):
        return []
    uuids = [gpu.uuid] + [piece.uuid for piece in gpu.mig_slices]
    return [uuid for uuid in uuids if uuid.lower().startswith(entry.lower())]


def _marked(reading: Reading, shown: Collection[str], why: str) -> Reading:
    gpus = []
    for gpu in reading.gpus:
        if gpu.uuid not in shown:
            slices = tuple(piece for piece in gpu.mig_slices if piece.uuid in shown)
            hidden = {"unusable": gpu.unusable or why, "mig_slices": slices}
            gpu = gpu.model_copy(update=hidden)
        gpus.append(gpu)
    return reading.model_copy(update={"gpus": tuple(gpus)})


@dataclass(frozen=True)
class Machine:
    """All devices here, the driver's version, and NVML's GPUs.

    `joint` is what a joint run adds to simulated devices, which take `time_scale` times as long as
    their profile says.
    """

    devices: tuple[Device, ...]
    joint: JointProfile
    driver: str | None
    gpus: tuple[Gpu, ...] = ()
    time_scale: float = 1.0

    def slowed(self, times: float, *, option: str = OPTION) -> Machine:
        """The machine whose simulated devices take so many times as long.

        Raises UsageError for devices that follow no profile; `option` is what would name one.
        """
        if times == 1:
            return self
        devices = []
        for device in self.devices:
            if device.profile is None:
                raise UsageError(
                    f"{_TIME_SCALE[option]}{times:g} needs a profile, and "
                    f"{device.label} has none",
                    remedy=f"name a profile: {option}PROFILE.toml",
                )
            profile = device.profile.slowed(times)
            devices.append(device.model_copy(update={"profile": profile}))
        return replace(
            self,
            devices=tuple(devices),
            joint=self.joint.slowed(times),
            time_scale=times,
        )

    def select(self, gpus: Sequence[str] | None) -> tuple[Device, ...]:
        """The devices that --gpus names, all for None.

        Raises UsageError if one is not here or can't be used.
        """
        try:
            return select(gpus, self.devices)
        except UsageError as error:
            for gpu in self.left_out:
                error.remedy += f"\nGPU {gpu.index} can't be used: {gpu.unusable}"
            raise

    @property
    def left_out(self) -> list[Gpu]:
        """The GPUs that can't be used, not even a MIG slice of them."""
        return [gpu for gpu in self.gpus if gpu.unusable and not gpu.devices]


@contextmanager
def held(devices: Sequence[Device]) -> Iterator[None]:
    """Locks these GPUs against this user's other gpubalance processes while the block runs.

    Simulated devices need no lock, and other hosts' devices get none. Raises InUse if another
    process has a GPU.
    """
    with ExitStack() as stack:
        for device in devices:
            if device.is_local_gpu:
                lock = Lock(device.uuid, f"{device.label} ({device.name})")
                stack.callback(lock.release)
        yield


def read_gpus() -> Reading:
    """The GPUs through NVML; those that CUDA_VISIBLE_DEVICES hides are marked as unusable."""
    return mark_hidden(within_or(without("nvml-hangs"), read), os.environ)


def find_machine(
    simulate: int | str | Path | None,
    hosts: Sequence[str] = (),
    *,
    option: str = OPTION,
) -> Machine:
    """The devices here, or simulated ones, which may be on these `hosts`.

    A number of plain ones is on each host. Errors call `simulate` by that `option`.

    Raises EnvironmentFault if no GPU can be used, BadInput for a bad profile, and UsageError for
    one whose devices are not on these hosts.
    """
    if simulate is None:
        return machine_of(read_gpus(), option=option)
    devices, joint = simulated_devices(simulate, hosts, option)
    check_hosts(devices, hosts, "the profile's")
    return Machine(devices, joint, None)


def check_hosts(devices: Sequence[Device], hosts: Sequence[str], whose: str) -> None:
    """Raises UsageError if hosts are given and these devices are not on them."""
    if not hosts:
        return
    named = [host for host in hosts_of(devices) if host is not None]
    if not named:
        raise UsageError(
            f"--hosts is given, but {whose} devices name no host",
            remedy='set host = "…" for each device of the profile',
        )
    missing = [host for host in named if host not in hosts]
    if missing:
        raise UsageError(
            f"--hosts lacks {', '.join(missing)}, where some of {whose} devices are"
        )


def machine_of(reading: Reading, whose: str = "", option: str = OPTION) -> Machine:
    """The GPUs that can be used.

    Raises EnvironmentFault, which begins with `whose` they are, if there are none.
    """
    simulate = _SIMULATE.format(option=option, profile=_PROFILE[option])
    if reading.problem:
        cause = known_error(reading.code).cause if reading.code else ""
        raise EnvironmentFault(
            whose + reading.problem, cause=cause, remedy=f"{reading.remedy}\n{simulate}"
        )
    old = too_old(reading.driver_version, reading.cuda_driver_version, software().cuda)
    if old is not None:
        row = known_error("driver-too-old")
        raise EnvironmentFault(
            whose + old, cause=row.cause, remedy=f"{row.remedy}\n{simulate}"
        )
    usable = tuple(device for gpu in reading.gpus for device in gpu.devices)
    if not usable:
        why = "; ".join(f"GPU {gpu.index}: {gpu.unusable}" for gpu in reading.gpus)
        rows = [match(gpu.unusable or "") for gpu in reading.gpus]
        remedies = dict.fromkeys(row.remedy for row in rows if row)
        raise EnvironmentFault(
            f"{whose}no GPU can be used: {why}", remedy="\n".join([*remedies, simulate])
        )
    return Machine(usable, JointProfile(), reading.driver_version, reading.gpus)


def machine_warnings(
    machine: Machine, devices: Sequence[Device], *, strict: bool
) -> list[Warning_]:
    """The warnings of what else is on the machine, for a command that works on these devices.

    Raises EnvironmentFault for a GPU that others use, if `strict`, and BadInput for a malformed
    TF_CONFIG.
    """
    used = list(_in_use(machine, devices))
    if used and strict:
        others = "; ".join(in_use.message for in_use in used)
        raise EnvironmentFault(
            others, remedy="end what you don't need on that GPU, or leave out --strict"
        )
    warnings = [*_untested(), *_cluster_ignored()]
    if set(devices) == set(machine.devices):  # whoever names devices knows
        warnings += [_left_out(gpu) for gpu in machine.left_out]
    return warnings + used


def _in_use(machine: Machine, devices: Sequence[Device]) -> Iterator[Warning_]:
    """A warning for each device on which other processes compute or hold memory.

    They are left alone. A MIG slice shows its GPU's processes, as NVML does not say which slice
    they are on.
    """
    processes = {gpu.index: gpu.processes or () for gpu in machine.gpus}
    for device in devices:
        others = [_process_text(process) for process in processes.get(device.index, ())]
        if others:
            yield warning("gpu-in-use", device=device.label, others=", ".join(others))


def _process_text(process: GpuProcess) -> str:
    """`process 4242 (python train.py, 3000 MiB)`."""
    facts = []
    if process.name:
        facts.append(clean(process.name, 40))
    if process.memory_bytes is None:
        facts.append("memory not told")
    else:
        facts.append(f"{process.memory_bytes / (1 << 20):.0f} MiB")
    return f"process {process.pid} ({', '.join(facts)})"


def _left_out(gpu: Gpu) -> Warning_:
    name = gpu.name or "unknown GPU"
    return warning("gpu-left-out", gpu=f"GPU {gpu.index} ({name})", why=gpu.unusable)


def _untested() -> Iterator[Warning_]:
    here = software()
    newer = untested(here.tensorflow, here.keras)
    if newer is not None:
        yield warning("untested-version", untested=newer.text, remedy=newer.remedy)


def _cluster_ignored() -> Iterator[Warning_]:
    """A warning if the environment names a cluster.

    Whoever set one that can't be read believes that it works.
    """
    config = tf_config_of(os.environ)
    if config is not None:
        yield warning("tf-config-ignored", count=sum(map(len, config.cluster.values())))


def environment(driver: str | None) -> Environment:
    """The environment of a measurement: its workers have the software that is beside this program.

    Records an allow-list of facts: no host name, user, paths or environment variables.
    """
    versions = software()
    return Environment(
        gpubalance=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu_name(),
        cpu_count=psutil.cpu_count() or 1,
        tensorflow=versions.tensorflow or "",
        keras=versions.keras or "",
        cuda=versions.cuda,
        cudnn=versions.cudnn,
        driver=driver,
    )


def environment_here(driver: str | None) -> Environment | None:
    """The same; None if TensorFlow's or Keras' version is unknown."""
    here = environment(driver)
    return here if here.tensorflow and here.keras else None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return ""
