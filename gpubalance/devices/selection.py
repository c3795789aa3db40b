"""Which devices are meant: by the words of --gpus, or by a plan that was made before."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from operator import attrgetter

from gpubalance.devices.hosts import connect_hosts
from gpubalance.devices.nvml import Card, normal_bus_id, with_gpu
from gpubalance.errors import PlanMismatch, UsageError
from gpubalance.numbers.units import format_bytes
from gpubalance.results.common import Model, Warning_, shapes_text
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Plan
from gpubalance.results.warnings import warning
from gpubalance.settings.device import Device, hosts_of
from gpubalance.system.deadlines import within_or
from gpubalance.text import clean

_UUID_KIND = re.compile(r"^(gpu|mig)-")
_SHORTEST_PREFIX = 3


def select(
    tokens: Sequence[str] | None, devices: Sequence[Device]
) -> tuple[Device, ...]:
    """The devices that `tokens` name, in the tokens' order; all devices for None.

    A token is an index (`alpha:0` on a named host), a bus id, a UUID, or the beginning of a UUID:
    at least three characters after an optional `GPU-`. Raises UsageError, with the candidates, for
    a token that names no device or several, and for a device named twice.
    """
    if tokens is None:
        return tuple(devices)
    if not tokens:
        raise UsageError("no device is named", remedy=_choice(devices))
    chosen: dict[str, Device] = {}
    for token in tokens:
        device = _only(token, devices)
        if device.uuid in chosen:
            raise UsageError(
                f"{device.label} is named twice", remedy="name each device once"
            )
        chosen[device.uuid] = device
    return tuple(chosen.values())


def _only(token: str, devices: Sequence[Device]) -> Device:
    shown = clean(token, limit=80)
    matches = _matches(token.strip().casefold(), devices)
    if not matches:
        raise UsageError(f"there is no device {shown!r}", remedy=_choice(devices))
    if len(matches) > 1:
        raise UsageError(
            f"{shown!r} matches {len(matches)} devices", remedy=_choice(matches)
        )
    return matches[0]


def _matches(token: str, devices: Sequence[Device]) -> list[Device]:
    """The devices with that index, else that bus id, else that UUID, else a UUID that begins so.

    The order matters: `123` may be an index and the beginning of a UUID, and one UUID may be the
    beginning of another.
    """
    by_index = [device for device in devices if device.called.casefold() == token]
    if by_index:
        return by_index
    bus_id = normal_bus_id(token)
    by_bus = [
        device for device in devices if bus_id is not None and device.bus_id == bus_id
    ]
    if by_bus:
        return by_bus
    by_uuid = [device for device in devices if device.uuid.casefold() == token]
    if by_uuid:
        return by_uuid
    if len(_UUID_KIND.sub("", token)) < _SHORTEST_PREFIX:
        return []
    return [device for device in devices if _begins(device.uuid.casefold(), token)]


def _begins(uuid: str, token: str) -> bool:
    return uuid.startswith(token) or _UUID_KIND.sub("", uuid).startswith(token)


def _choice(devices: Sequence[Device]) -> str:
    if not devices:
        return "there are no devices here"
    rows = ["name one of these by index, UUID or bus id:"]
    rows += [
        f"  {device.called}  {clean(device.name)}  {clean(device.uuid)}"
        for device in devices
    ]
    return "\n".join(rows)


Facts = tuple[object, ...]


def first_equal(devices: Sequence[Device]) -> list[int]:
    """For each device the number of the first one that equals it; its own if none before it does.

    Equal devices have one name, memory and profile, and are on one host: processors, PCIe and
    drivers differ between hosts. GPUs of this host also have in common what NVML says of their
    compute capability, PCIe link, power limit and highest clock, or that it does not say it.
    """
    kinds = [_kind(device) for device in devices]
    return [kinds.index(kind) for kind in kinds]


def _kind(device: Device) -> Facts:
    facts = _speed_facts(device.uuid) if device.is_local_gpu else ()
    return (
        device.host,
        device.simulated,
        device.name,
        device.memory_bytes,
        device.profile,
        facts,
    )


@cache  # what is announced and what is then probed must be the same devices
def _speed_facts(uuid: str) -> Facts:
    """What NVML says of a GPU that decides how fast it is, beside its name and memory."""

    def facts(card: Card) -> Facts:
        return (
            card.ask("CudaComputeCapability"),
            card.ask("MaxPcieLinkWidth"),  # that of card and slot together
            card.ask("MaxPcieLinkGeneration"),
            card.ask("EnforcedPowerLimit"),
            card.ask("MaxClockInfo", card.nvml.NVML_CLOCK_SM),
        )

    return within_or(None, lambda: with_gpu(uuid, facts)) or ()


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
        hosts = hosts_option(plan, used) if via is None else ",".join(named)
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


def hosts_option(plan: Plan, devices: Sequence[Device]) -> str | None:
    """What --hosts must be to reach these devices of a plan; None if they are on this machine."""
    named = [host for host in hosts_of(devices) if host is not None]
    if not named or (plan.reached_by is None and devices[0].simulated):
        return None
    return "ray" if plan.reached_by == "ray" else ",".join(named)


def refuse_table(plan: Plan) -> None:
    """Raises PlanMismatch for a plan of `plan --curve`, because a table identifies no device."""
    if not plan.devices[0].is_of_table:
        return
    gpus = " ".join(str(plan.devices[number].index) for number in plan.split.used)
    options = plan.split.without_idle.options
    raise PlanMismatch(
        "the plan is from a table of step times (plan --curve), which does not identify "
        "this machine's GPUs",
        remedy="put the line that `plan --curve` printed into your script, with GPUs "
        f"numbered as in the table: split = gpubalance.Split({plan.split_arguments})\n"
        f"gpubalance run --gpus {gpus} {options} measures it",
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
