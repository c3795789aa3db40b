"""Matches a plan that was made before with the devices that are here now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from gpubalance.devices.hosts import connect_hosts
from gpubalance.errors import PlanMismatch
from gpubalance.numbers.units import format_bytes
from gpubalance.results.common import Model, Warning_, shapes_text
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Plan
from gpubalance.results.warnings import warning
from gpubalance.settings.device import Device, hosts_of

MAKE_ONE = "gpubalance balance makes a plan for what is here"


def reach_planned(plan: Plan, hosts: str | None, via: str | None) -> None:
    """Reaches the hosts of a plan's split: the ones typed, else the plan's.

    Only the user may name a prefix. Simulated hosts are this machine, unless the plan was made on
    others. Raises PlanMismatch if a host is missing or the plan names none, and whatever
    `connect_hosts` raises.
    """
    used = [plan.devices[number] for number in plan.split.used]
    named = [host for host in hosts_of(used) if host is not None]
    if hosts is None and named:
        are_others = (
            via is not None or plan.reached_by is not None or not used[0].simulated
        )
        if plan.reached_by == "ray" and via is None:
            hosts = "ray"
        elif are_others:
            hosts = ",".join(named)
    if hosts is not None and not named:
        raise PlanMismatch(
            "the plan is for one host, which it does not name",
            remedy="leave --hosts out",
        )
    reached = connect_hosts(hosts, via)
    if not reached:
        return
    missing = [host for host in named if host not in reached]
    if missing:
        raise PlanMismatch(
            f"the plan needs devices on {', '.join(missing)}, and --hosts names only "
            f"{', '.join(reached)}"
        )


def planned_devices(
    plan: Plan | Layers,
    used: Sequence[int],
    devices: Sequence[Device],
    remedy: str = MAKE_ONE,
) -> tuple[Device, ...]:
    """The devices of a plan, or of a cut, as they are numbered here now.

    A device is recognised by its UUID, as an index changes when a card is added. Only those in
    `used` must be here. Raises PlanMismatch with each difference.
    """
    what = "plan" if isinstance(plan, Plan) else "cut"
    _refuse_other_simulation(plan.devices, devices, what)
    here = {device.uuid: device for device in devices}
    differences: list[str] = []
    for number in used:
        device = plan.devices[number]
        differences += _differences(device, here.get(device.uuid))
    if differences:
        raise PlanMismatch(
            f"the {what} is for other devices: {'; '.join(differences)}", remedy=remedy
        )
    return tuple(here.get(device.uuid, device) for device in plan.devices)


def _refuse_other_simulation(
    planned: Sequence[Device], devices: Sequence[Device], what: str
) -> None:
    """Raises PlanMismatch if one are plain CPU devices and the others follow a profile."""
    if _are_plain(planned) == _are_plain(devices):
        return
    if _are_plain(devices):
        if not planned[0].simulated:
            return  # for GPUs, of which each that is missing is named
        raise PlanMismatch(
            f"the {what} is for simulated devices of a profile, not for plain CPU devices",
            remedy="name the profile that it was made with: --simulate PROFILE",
        )
    count = 1 + max(device.index for device in planned)
    raise PlanMismatch(
        f"the {what} is for {count} plain CPU devices (--simulate {count}), not for those of a "
        "profile",
        remedy=f"use --simulate {count}; or {MAKE_ONE}",
    )


def _are_plain(devices: Sequence[Device]) -> bool:
    """Whether they are simulated devices without a profile."""
    return all(device.simulated and device.profile is None for device in devices)


def forced(plan: Plan, devices: Sequence[Device]) -> Iterator[Warning_]:
    """A warning if a plan's split runs on other devices than those it was made for."""
    differences: list[str] = []
    for number in plan.split.used:
        differences += _differences(plan.devices[number], devices[number])
    if differences:
        yield warning(
            "plan-forced", differences="; ".join(differences), advice=MAKE_ONE
        )


def nearest_devices(plan: Plan, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The plan's devices, or for a missing one that with its index, else the first unused one.

    Raises PlanMismatch if there are too few.
    """
    left = list(devices)
    nearest = list(plan.devices)
    missing = list(plan.split.used)
    if len(missing) > len(left):
        raise PlanMismatch(
            f"the plan needs {len(missing)} devices, and there are {len(left)} here",
            remedy=MAKE_ONE,
        )
    # By UUID, else by index, else any
    for key in (attrgetter("uuid"), attrgetter("called"), lambda _: None):
        for number in list(missing):
            wanted = key(plan.devices[number])
            device = next((device for device in left if key(device) == wanted), None)
            if device is not None:
                nearest[number] = device
                left.remove(device)
                missing.remove(number)
    return tuple(nearest)


def _differences(planned: Device, here: Device | None) -> Iterator[str]:
    """What differs between a plan's device and the one that takes its place."""
    where = f"{planned.label} ({planned.name}, {planned.uuid})"
    if here is None:
        yield f"{where} is missing"
        return
    if planned.uuid != here.uuid:
        yield f"{where} is now {here.label} ({here.name}, {here.uuid})"
    if planned.name != here.name:
        yield f"{where} has another name: {here.name}, not {planned.name}"
    if planned.memory_bytes != here.memory_bytes:
        memory = format_bytes(here.memory_bytes)
        yield (
            f"{where} has {memory} of memory, not {format_bytes(planned.memory_bytes)}"
        )
    if planned.profile != here.profile:
        yield f"{where} has another profile"


def check_model(
    planned: Model | None, model: Model, *, what: str = "plan", remedy: str = ""
) -> None:
    """Raises PlanMismatch if the model has changed: then its limits and times no longer hold."""
    if planned is not None and not planned.is_like(model):
        why = (
            f"the {what} is for the model {model_text(planned, model)}, not for "
            f"{model_text(model, planned)}"
        )
        raise PlanMismatch(why, remedy=remedy)


def model_text(model: Model, other: Model) -> str:
    """`small with 648 parameters`, with what is known to differ from the other of the rest."""
    text = f"{model.name} with {model.parameters:,} parameters"
    shapes = model.input_shapes
    if shapes and other.input_shapes not in (None, shapes):
        text += f", of samples of {shapes_text(shapes)}"
    if model.optimizer and other.optimizer not in (None, model.optimizer):
        text += f", trained by {model.optimizer}"
    return text
