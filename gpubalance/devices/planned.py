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
from gpubalance.settings.device import Device, hosts_of

MAKE_ONE = "gpubalance balance makes a plan for what is here"


def reach_planned(plan: Plan, hosts: str | None, via: str | None) -> None:
    """Reaches the hosts of a plan's split: the ones typed, else the plan's. Only the user may name
    a prefix.

    Simulated hosts are this machine, unless the plan was made on others. Raises PlanMismatch if a
    host is missing or the plan names none, and whatever `reach` raises.
    """
    used = [plan.devices[number] for number in plan.split.used]
    named = [host for host in hosts_of(used) if host is not None]
    if hosts is None and named:
        by_ray = plan.reached_by == "ray" and via is None
        are_others = via is not None or plan.reached_by is not None or not used[0].simulated
        hosts = "ray" if by_ray else ",".join(named) if are_others else None
    if hosts is not None and not named:
        raise PlanMismatch(
            "the plan is for the devices of one host, which it does not name",
            remedy="leave --hosts out",
        )
    reached = connect_hosts(hosts, via)
    missing = [host for host in named if host not in reached] if reached else []
    if missing:
        raise PlanMismatch(
            f"the plan is for devices on {', '.join(missing)}, and --hosts names "
            f"{', '.join(reached)}"
        )


def planned_devices(
    plan: Plan | Layers, used: Sequence[int], devices: Sequence[Device], remedy: str = MAKE_ONE
) -> tuple[Device, ...]:
    """The devices of a plan, or of a cut, as they are numbered here now.

    A device is recognised by its UUID, as an index changes when a card is added. Only those in
    `used` must be here. Raises PlanMismatch with each difference.
    """
    here = {device.uuid: device for device in devices}
    needed = [plan.devices[number] for number in used]
    differences = [line for device in needed for line in _changes(device, here.get(device.uuid))]
    if differences:
        what = "plan" if isinstance(plan, Plan) else "cut"
        raise PlanMismatch(
            f"the {what} is for other devices: {'; '.join(differences)}", remedy=remedy
        )
    return tuple(here.get(device.uuid, device) for device in plan.devices)


def forced(plan: Plan, devices: Sequence[Device]) -> Iterator[Warning_]:
    """A warning if a plan's split runs on other devices than those it was made for."""
    pairs = zip(plan.devices, devices, plan.batches, strict=True)
    found = [
        line for planned, device, batch in pairs if batch for line in _changes(planned, device)
    ]
    if found:
        yield Warning_(
            code="plan-forced",
            message=f"the plan is for other devices: {'; '.join(found)}",
            next=MAKE_ONE,
        )


def nearest_devices(plan: Plan, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The plan's devices, or for a missing one that with its index, else the first unused one.

    Raises PlanMismatch if there are too few.
    """
    left, nearest = list(devices), list(plan.devices)
    missing = list(plan.split.used)
    if len(missing) > len(left):
        raise PlanMismatch(
            f"the plan is for {len(missing)} devices, and there are {len(left)} here",
            remedy=MAKE_ONE,
        )
    for key in (attrgetter("uuid"), attrgetter("called"), lambda _: None):
        for number in list(missing):
            alike = [device for device in left if key(device) == key(plan.devices[number])]
            if alike:
                nearest[number] = alike[0]
                left.remove(alike[0])
                missing.remove(number)
    return tuple(nearest)


def _changes(planned: Device, found: Device | None) -> Iterator[str]:
    where = f"{planned.label} ({planned.name}, {planned.uuid})"
    if found is None:
        yield f"{where} is not here"
        return
    if planned.uuid != found.uuid:
        yield f"{where} is now {found.label} ({found.name}, {found.uuid})"
    if planned.name != found.name:
        yield f"{where} has another name: {found.name}, not {planned.name}"
    if planned.memory_bytes != found.memory_bytes:
        was, is_now = format_bytes(planned.memory_bytes), format_bytes(found.memory_bytes)
        yield f"{where} has another memory: {is_now}, not {was}"
    if planned.profile != found.profile:
        yield f"{where} has another profile"


def check_model(
    planned: Model | None, found: Model, *, what: str = "plan", remedy: str = ""
) -> None:
    """Raises PlanMismatch if the model has changed: its batch limits and times no
    longer hold then.
    """
    if planned is not None and not planned.is_like(found):
        why = (
            f"the {what} is for a model {model_text(planned, found)}, this is "
            f"{model_text(found, planned)}"
        )
        raise PlanMismatch(why, remedy=remedy)


def model_text(model: Model, other: Model) -> str:
    """`small with 648 parameters`, and the shapes of its samples if the other one's are known and
    differ.
    """
    shapes = model.input_shapes
    samples = (
        f", of samples of {shapes_text(shapes)}"
        if shapes and other.input_shapes not in (None, shapes)
        else ""
    )
    return f"{model.name} with {model.parameters:,} parameters{samples}"
