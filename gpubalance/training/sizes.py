"""Checks what a script gives for a split, with an error for each kind that can't be meant."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, get_args

from gpubalance.devices.machine import Machine, find_machine
from gpubalance.devices.profile import IN_A_SCRIPT
from gpubalance.errors import EnvironmentFault, PlanMismatch, UsageError
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import one_of
from gpubalance.settings.cluster import Cluster, cluster_of
from gpubalance.settings.device import Device, Host, hosts_of
from gpubalance.settings.record import LARGEST_TIME_SCALE

Gpus: TypeAlias = Sequence[int | str] | int | str | None
Simulate: TypeAlias = int | str | Path | None


def machine_for(
    gpus: Gpus,
    simulate: Simulate,
    hosts: Sequence[Host] = (),
    time_scale: float = 1.0,
) -> tuple[Machine, tuple[Device, ...]]:
    """The machine, and those of its devices that a script names.

    Raises what `gpubalance run` raises. A process does not ask other hosts for their GPUs: `hosts`
    are those of simulated devices, which take `time_scale` times as long as their profile says.
    """
    _check_time_scale(time_scale)
    if hosts and simulate is None:
        raise UsageError(
            "hosts= needs simulate=: a process learns of other hosts' GPUs only from "
            "a plan",
            remedy="make a plan with gpubalance balance --hosts, then split = "
            "gpubalance.load_plan(PLAN)",
        )
    machine = find_machine(simulate, hosts, option=IN_A_SCRIPT)
    machine = machine.slowed(time_scale, option=IN_A_SCRIPT)
    if gpus is None:
        return machine, machine.select(None)
    named = [gpus] if isinstance(gpus, int | str) else gpus
    try:
        return machine, machine.select([str(gpu) for gpu in named])
    except UsageError as error:
        if type(gpus) is int:  # meant as how many
            error.remedy = f"gpus=[0, 1] selects two devices\n{error.remedy}"
        raise


def _check_time_scale(time_scale: Any) -> None:
    """Raises UsageError for what is no factor on a profile's times."""
    is_number = isinstance(time_scale, int | float) and not isinstance(time_scale, bool)
    if not (is_number and 0 < time_scale <= LARGEST_TIME_SCALE):
        raise UsageError(
            f"time_scale is {time_scale!r}",
            remedy="give a number above 0: time_scale=8 makes everything in a profile "
            "take 8 times as long",
        )


def check_choice(name: str, value: object, choice: Any) -> None:
    """Raises UsageError for what is none of a choice's words; `name` is the argument's."""
    if value not in get_args(choice):
        raise UsageError(f"{name} is {value!r}", remedy=f"give {one_of(choice)}")


def cluster_for(used: Iterable[Device]) -> Cluster | None:
    """This process's place among a split's devices, from TF_CONFIG; None on one host.

    Raises UsageError for several hosts without a process for each device, PlanMismatch for too many
    or few processes.
    """
    devices = tuple(used)
    if len(hosts_of(devices)) <= 1:
        return None
    cluster = cluster_of(os.environ)
    labels = ", ".join(device.label for device in devices)
    if cluster is None:
        raise UsageError(
            f"the split's devices are on several hosts, {labels}, and this process is "
            "not on any of them",
            remedy="start a process for each: gpubalance launch PLAN SCRIPT",
        )
    if len(cluster.addresses) != len(devices):
        raise PlanMismatch(
            f"TF_CONFIG has {len(cluster.addresses)} workers, but the split has "
            f"{len(devices)} devices: {labels}",
            remedy="start one process per device, in the plan's order: gpubalance "
            "launch PLAN SCRIPT does that",
        )
    return cluster


def check_monitor(shares: BatchSplit, every: Any, noise: Any) -> None:
    """Raises UsageError for what no monitor can do, EnvironmentFault for a file it can't write."""
    if not isinstance(every, int) or every < 1:
        raise UsageError(
            f"every={every!r} is not possible: a monitor timestamps every Nth step, N "
            "from 1 on",
            remedy="every=1 timestamps each step",
        )
    if noise and sum(shares.counts) < 2:
        raise UsageError(
            "the gradient noise scale needs at least two parts of a batch, but one "
            "device has it in one piece",
            remedy=f"divide it in two: micro_batches={[-(-shares.global_batch // 2)]}",
        )
    if isinstance(noise, str | Path) and noise:
        _check_writable(Path(noise))


def _check_writable(path: Path) -> None:
    """Raises EnvironmentFault at once for a file that could not be written later."""
    folder = path.resolve().parent
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise EnvironmentFault(
            f"noise={path} is not a file in a folder that exists and can be written to",
            remedy=f"give a file name, and create its folder: mkdir -p {folder}",
        )
