"""Loads the split of a plan into a training script."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from gpubalance.devices.cluster import cluster_of
from gpubalance.devices.machine import find_machine
from gpubalance.devices.planned import planned_devices
from gpubalance.devices.profile import IN_A_SCRIPT
from gpubalance.results.plan import Plan
from gpubalance.results.records import result_of
from gpubalance.settings.device import JointProfile, hosts_of
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
    if simulate is None and plan.devices[0].simulated:
        names = ", ".join(f"{device.label} {device.name}" for device in plan.devices)
        warnings.warn(
            f"{path} is a plan for simulated devices ({names}): it trains on this machine's CPU, at their pace, but "
            "without what the profile's [joint] adds to a step. simulate= in load_plan says that this is meant, and "
            "adds it; for GPUs, balance without --simulate",
            stacklevel=2,
        )
        devices, joint = plan.devices, JointProfile()
    else:
        machine = find_machine(simulate, option=IN_A_SCRIPT)
        own = plan if cluster is None else _part_of(plan, plan.split.used[cluster.rank])
        here, joint = planned_devices(own, machine.devices), machine.joint
        devices = here if cluster is None else plan.devices
    split = Split._of(devices, plan.split, joint, plan.settings.all_reduce, cluster)
    split.plan, split.simulate = plan, simulate
    split.limits = tuple(share.limit for share in plan.shares if share.batch)
    return split


def _part_of(plan: Plan, number: int) -> Plan:
    """The plan reduced to one of its devices, the only one that this process of a cluster has."""
    one = slice(number, number + 1)
    return plan.model_copy(
        update={name: getattr(plan, name)[one] for name in ("devices", "batches", "micro_batches", "shares")}
    )
