"""Loads a plan's split, or the stages of a cut model, into a training script."""

from __future__ import annotations

import warnings
from pathlib import Path

from gpubalance.devices.machine import Machine, find_machine
from gpubalance.devices.planned import planned_devices
from gpubalance.devices.profile import IN_A_SCRIPT
from gpubalance.planning.fixed_costs import fixed_samples
from gpubalance.planning.model import Curve
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Plan
from gpubalance.results.records import result_of
from gpubalance.settings.device import JointProfile, hosts_of
from gpubalance.settings.launching import launched_split
from gpubalance.training.pipelined import Pipelined
from gpubalance.training.sizes import Simulate, cluster_for
from gpubalance.training.split import Split


def load_plan(path: str | Path | Plan, *, simulate: Simulate = None) -> Split:
    """The split of a plan, on the devices here.

    The plan is what `gpubalance.balance` returned, or a file that `gpubalance balance -o FILE` or
    `plan -o FILE` wrote. Of a plan for several hosts it is the part that TF_CONFIG gives this
    process. After a loss, `gpubalance launch --restarts` gives it another split.

    `simulate` is the device profile, as for --simulate, of a plan for simulated devices, or the
    number of plain CPU devices on each of the plan's hosts.

    Raises PlanMismatch, with the difference, if the devices here are others, BadInput for a file
    that is not a plan, UsageError for one that is not there, EnvironmentFault without a GPU. Warns
    of a plan for simulated devices without `simulate`; `fit` warns of a model, a precision or a
    `jit_compile` that it was not measured with.
    """
    plan = result_of(path, Plan)
    shares = launched_split(plan.created) or plan.split
    used = shares.used
    chosen = [plan.devices[number] for number in used]
    cluster = cluster_for(chosen)
    machine = _machine_for(plan, path, simulate)
    if cluster:  # this process has one of them
        planned_devices(plan, [used[cluster.rank]], machine.devices)
        devices = plan.devices
    else:
        devices = planned_devices(plan, used, machine.devices)
    split = Split.of(devices, shares, machine.joint, plan.settings.summing, cluster)
    split.plan = plan
    if not isinstance(path, Plan):
        split.plan_file = path
    split.simulate = simulate
    split.precision = plan.settings.precision
    split.limits = tuple(plan.shares[number].limit for number in used)
    if plan.curves:
        split.fixed_samples = [
            fixed_samples(Curve.through(plan.curves[number]), size)
            for number, size in zip(used, split.micro_batches, strict=True)
        ]
    return split


def load_layers(path: str | Path | Layers, *, simulate: Simulate = None) -> Pipelined:
    """The stages of a result of `gpubalance layers -o FILE`, on the devices here.

    `simulate` is the device profile, as for --simulate, of a result for simulated devices.

    Raises PlanMismatch, with the difference, if the devices here are others, BadInput for a file
    that is no such result, UsageError for one that is not there. Warns of one for simulated
    devices without `simulate`.
    """
    result = result_of(path, Layers)
    machine = _machine_for(result, path, simulate)
    used = [stage.device for stage in result.stages]
    remedy = "gpubalance layers cuts it for what is here"
    devices = planned_devices(result, used, machine.devices, remedy)
    return Pipelined(result, devices, machine.joint)


def _machine_for(result: Plan | Layers, path: object, simulate: Simulate) -> Machine:
    """The machine to train on.

    It has the result's own devices, with a warning, if they are simulated and nobody says so.
    """
    if simulate is not None or not result.devices[0].simulated:
        hosts = [host for host in hosts_of(result.devices) if host is not None]
        machine = find_machine(simulate, hosts, option=IN_A_SCRIPT)
        return machine.slowed(result.settings.time_scale, option=IN_A_SCRIPT)
    names = ", ".join(f"{device.label} {device.name}" for device in result.devices)
    if result.devices[0].profile is None:
        how = "on CPUs. simulate= says that this is meant"
    else:
        how = (
            "on this machine's CPU, at their pace, but without what their profile's [joint] adds "
            "to a step. simulate= says that this is meant, and adds it"
        )
    warnings.warn(
        f"{path} is of simulated devices ({names}): it trains {how}; for GPUs, measure without "
        "--simulate",
        stacklevel=3,
    )
    return Machine(result.devices, JointProfile(), None)
