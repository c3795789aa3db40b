"""Matches a plan that was made before with the devices that are here now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from gpubalance.devices.hosts import reach
from gpubalance.errors import PlanMismatch
from gpubalance.numbers.units import format_bytes
from gpubalance.results.common import Model, Warning_, shapes_text
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Plan
from gpubalance.settings.device import Device, hosts_of

_MAKE_ONE = "gpubalance balance makes a plan for what is here"
_OR_FORCE = f"{_MAKE_ONE}; --force runs this one all the same"


def reach_planned(plan: Plan, hosts: str | None, via: str | None) -> None:
    """Reaches the hosts of a plan's split: the ones typed, else the plan's. Only the user may name a prefix.

    Simulated hosts are this machine, unless the plan was made on others. Raises PlanMismatch if a host is missing or
    the plan names none, and whatever `reach` raises.
    """
    used = [plan.devices[number] for number in plan.split.used]
    named = [host for host in hosts_of(used) if host is not None]
    if hosts is None and named:
        by_ray = plan.reached_by == "ray" and via is None
        are_others = via is not None or plan.reached_by is not None or not used[0].simulated
        hosts = "ray" if by_ray else ",".join(named) if are_others else None
    if hosts is not None and not named:
        raise PlanMismatch(
            "the plan is for the devices of one host, which it does not name", remedy="leave --hosts out"
        )
    reached = reach(hosts, via)
    missing = [host for host in named if host not in reached] if reached else []
    if missing:
        raise PlanMismatch(f"the plan is for devices on {', '.join(missing)}, and --hosts names {', '.join(reached)}")


def planned_devices(plan: Plan, devices: Sequence[Device], *, force: bool | None = None) -> tuple[Device, ...]:
    """The plan's devices as they are numbered here now. Raises PlanMismatch with each difference.

    A device is recognised by its UUID, as an index changes when a card is added. A device without samples may be
    missing. With `force` a missing device is replaced by the one with its index, else by the first unused one:
    PlanMismatch is raised only if there are too few. None means that the user can't ask for that here.
    """
    if force:
        return _nearest(plan, devices)
    here = {device.uuid: device for device in devices}
    wanted = list(zip(plan.devices, plan.batches, strict=True))
    differences = [line for device, batch in wanted if batch for line in _changes(device, here.get(device.uuid))]
    if differences:
        raise PlanMismatch(
            "the plan is for other devices: " + "; ".join(differences), remedy=_MAKE_ONE if force is None else _OR_FORCE
        )
    return tuple(here.get(device.uuid, device) for device, _ in wanted)


def cut_devices(result: Layers, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices of a `layers` result as they are numbered here now. Raises PlanMismatch with each difference."""
    here = {device.uuid: device for device in devices}
    used = [result.devices[stage.device] for stage in result.stages]
    differences = [line for device in used for line in _changes(device, here.get(device.uuid))]
    if differences:
        raise PlanMismatch(
            f"the layers were cut for other devices: {'; '.join(differences)}",
            remedy="gpubalance layers cuts them for what is here",
        )
    return tuple(here.get(device.uuid, device) for device in result.devices)


def forced(plan: Plan, devices: Sequence[Device]) -> Iterator[Warning_]:
    """A warning if a plan's split runs on other devices than those it was made for."""
    pairs = zip(plan.devices, devices, plan.batches, strict=True)
    found = [line for planned, device, batch in pairs if batch for line in _changes(planned, device)]
    if found:
        yield Warning_(code="plan-forced", message=f"the plan is for other devices: {'; '.join(found)}", next=_MAKE_ONE)


def _nearest(plan: Plan, devices: Sequence[Device]) -> tuple[Device, ...]:
    left = list(devices)
    taken: dict[int, Device] = {}
    used = [(number, plan.devices[number]) for number in plan.split.used]
    for key in (attrgetter("uuid"), attrgetter("called"), lambda _: None):
        for number, planned in used:
            alike = [device for device in left if key(device) == key(planned)]
            if alike and number not in taken:
                taken[number] = alike[0]
                left.remove(alike[0])
    if len(taken) < len(used):
        raise PlanMismatch(f"the plan is for {len(used)} devices, and there are {len(devices)} here", remedy=_MAKE_ONE)
    return tuple(taken.get(number, device) for number, device in enumerate(plan.devices))


def _changes(planned: Device, found: Device | None) -> Iterator[str]:
    where = f"{planned.label} ({planned.name}, {planned.uuid})"
    if found is None:
        yield f"{where} is not here"
        return
    if planned.uuid != found.uuid:
        yield f"{where} is now {found.label} ({found.name}, {found.uuid})"
    for name, was, is_now in (
        ("name", planned.name, found.name),
        ("memory", format_bytes(planned.memory_bytes), format_bytes(found.memory_bytes)),
        ("profile", planned.profile, found.profile),
    ):
        if was != is_now:
            yield f"{where} has another {name}" + ("" if name == "profile" else f": {is_now}, not {was}")


def check_model(planned: Model | None, found: Model, *, what: str = "plan", remedy: str = "") -> None:
    """Raises PlanMismatch if the model has changed: its batch limits and times no longer hold then."""
    if planned is not None and not planned.is_like(found):
        raise PlanMismatch(
            f"the {what} is for a model {_told(planned, found)}, this is {_told(found, planned)}", remedy=remedy
        )


def _told(model: Model, other: Model) -> str:
    shapes = model.input_shapes
    samples = f", of samples of {shapes_text(shapes)}" if shapes and other.input_shapes not in (None, shapes) else ""
    return f"{model.name} with {model.parameters:,} parameters{samples}"
