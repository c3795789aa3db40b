"""Loads a plan's split, or the stages of a cut model, into a training script."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from gpubalance.devices.cluster import cluster_of
from gpubalance.devices.machine import Machine, find_machine
from gpubalance.devices.planned import cut_devices, planned_devices
from gpubalance.devices.profile import IN_A_SCRIPT
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Plan
from gpubalance.results.records import result_of
from gpubalance.settings.device import JointProfile, hosts_of
from gpubalance.training.pipelined import Pipelined
from gpubalance.training.sizes import check_hosts
from gpubalance.training.split import Split


def load_plan(path: str | Path | Plan, *, simulate: int | str | Path | None = None) -> Split:
    """The split of a plan, on the devices here; for a plan of several hosts the part that TF_CONFIG gives this process.

    The plan is what `gpubalance.balance` returned, or a file that `gpubalance balance -o FILE` or `plan -o FILE` wrote.

    `simulate` is the device profile, as for --simulate, of a plan for simulated devices.

    Raises PlanMismatch, with the difference, if the devices here are others, BadInput for a file that is not a plan,
    EnvironmentFault if there is no GPU. Warns of a plan that was measured with XLA, which training does not use, and of
    one for simulated devices without `simulate`; `fit` warns of a model that the plan was not measured with.
    """
    plan = result_of(path, Plan)
    if plan.settings.xla:
        warnings.warn(
            f"{'the plan' if plan is path else path} was measured with XLA, and a split trains without: "
            "gpubalance balance --no-xla finds its split",
            stacklevel=2,
        )
    used = [plan.devices[number] for number in plan.split.used]
    cluster = cluster_of(os.environ) if len(hosts_of(used)) > 1 else None
    check_hosts(used, cluster)
    names = ", ".join(f"{device.label} {device.name}" for device in plan.devices)
    machine = _machine_for(
        plan,
        simulate,
        f"{path} is a plan for simulated devices ({names}): it trains on this machine's CPU, at their pace, but "
        "without what the profile's [joint] adds to a step. simulate= in load_plan says that this is meant, and "
        "adds it; for GPUs, balance without --simulate",
    )
    devices, joint = plan.devices, machine.joint if machine else JointProfile()
    if machine and cluster is None:
        devices = planned_devices(plan, machine.devices)
    elif machine and cluster:
        planned_devices(_part_of(plan, plan.split.used[cluster.rank]), machine.devices)
    split = Split.of(devices, plan.split, joint, plan.settings.all_reduce, cluster)
    split.plan, split.simulate = plan, simulate
    split.limits = tuple(share.limit for share in plan.shares if share.batch)
    return split


def load_layers(path: str | Path | Layers, *, simulate: int | str | Path | None = None) -> Pipelined:
    """The stages of a result of `gpubalance layers -o FILE`, on the devices here.

    `simulate` is the device profile, as for --simulate, of a result for simulated devices.

    Raises PlanMismatch, with the difference, if the devices here are others, BadInput for a file that is no such
    result. Warns of one for simulated devices without `simulate`.
    """
    result = result_of(path, Layers)
    machine = _machine_for(
        result,
        simulate,
        f"{path} is of simulated devices: it trains on this machine's CPU, at their pace. simulate= in load_layers "
        "says that this is meant; for GPUs, run layers without --simulate",
    )
    if machine is None:
        return Pipelined(result, result.devices, JointProfile())
    return Pipelined(result, cut_devices(result, machine.devices), machine.joint)


def _machine_for(result: Plan | Layers, simulate: int | str | Path | None, told: str) -> Machine | None:
    """The machine to train on; None, with the warning, for simulated devices that nobody asked for."""
    if simulate is None and result.devices[0].simulated:
        warnings.warn(told, stacklevel=3)
        return None
    return find_machine(simulate, option=IN_A_SCRIPT)


def _part_of(plan: Plan, number: int) -> Plan:
    """The plan reduced to one of its devices, the only one that this process of a cluster has."""
    parts = ("devices", "batches", "micro_batches", "shares")
    return plan.model_copy(update={name: getattr(plan, name)[number : number + 1] for name in parts})
