"""What else on the machine may change the figures of the devices that a command works on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from gpubalance.devices.gpus import Gpu, GpuProcess
from gpubalance.devices.machine import Machine
from gpubalance.errors import EnvironmentFault
from gpubalance.results.common import Warning_
from gpubalance.results.warnings import warning
from gpubalance.settings.cluster import tf_config_of
from gpubalance.settings.device import Device
from gpubalance.system.versions import software, untested
from gpubalance.text import clean


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
