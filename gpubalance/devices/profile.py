"""Simulated devices: those of a profile (TOML), or a number of plain CPU devices."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from gpubalance.errors import BadInput, UsageError
from gpubalance.settings.device import Device, DeviceProfile, Host, JointProfile
from gpubalance.settings.record import Fault, Record, all_faults
from gpubalance.system.files import read_toml
from gpubalance.text import clean

# What a source of simulated devices is called, on the command line and in a script
OPTION = "--simulate "
IN_A_SCRIPT = "simulate="
_MOST_DEVICES = 64
_MOST_FAULTS = 20  # that an error lists
_ANY_LINE = {"alpha_s": 0.0, "beta_s": 0.0}


class ProfileDevice(DeviceProfile):
    """A device of a profile file, and its host: a name, or null for this machine."""

    host: Host | None = None

    @property
    def own(self) -> DeviceProfile:
        """The device's behaviour, without its host."""
        return DeviceProfile.model_validate(self.model_dump(exclude={"host"}))


class Profile(Record):
    """A profile file: its devices, and what a joint run of them adds.

    Either all devices name a host or none does.
    """

    device: Annotated[
        tuple[ProfileDevice, ...], Field(min_length=1, max_length=_MOST_DEVICES)
    ]
    joint: JointProfile = JointProfile()

    @model_validator(mode="after")
    def _all_have_hosts_or_none(self) -> Profile:
        hosts = [device.host for device in self.device]
        if None in hosts and len(set(hosts)) > 1:
            number = hosts.index(None) + 1
            raise ValueError(f"device {number} has no host, unlike the other devices")
        return self


def shipped_profiles() -> dict[str, Path]:
    """The files of the profiles that come with gpubalance, by name."""
    folder = Path(__file__).parents[1] / "configs"  # in a checkout a link to configs/
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_profile(path: Path, option: str = OPTION) -> Profile:
    """Reads a profile. The BadInput for a bad one names the file and each wrong field.

    Raises UsageError for one that is not there.
    """
    remedy = (
        f"{option.rstrip(' =')} takes the file of a profile, the name of a shipped one "
        f"({', '.join(shipped_profiles())}), or a number of plain CPU devices"
    )
    document = read_toml(path, "profile", remedy=remedy)
    try:
        return Profile.model_validate(document)
    except ValidationError:
        raise BadInput(
            _faults_text(path, _faults(document)),
            remedy="gpubalance guide profiles lists every key of a profile",
        ) from None


def _faults(document: dict[str, Any]) -> list[Fault]:
    """All that is wrong, device by device: keys, devices as a whole, and all of them together.

    Pydantic looks at a whole only once its parts are sound, so it is asked again about what is left
    when the faults so far are put right.
    """
    faults: list[Fault] = []
    while True:
        known = {fault.at for fault in faults}
        try:
            Profile.model_validate(document)
            found = []
        except ValidationError as error:
            found = [one for one in all_faults(error, _keys_at) if one.at not in known]
        if not found:
            return sorted(faults, key=_device_number)
        faults += found
        for fault in found:
            document = _put_right(document, fault)


def _device_number(fault: Fault) -> float:
    """The place of the fault's device; what is of no device comes after all of them."""
    kind, number, *_ = (*fault.at, None, None)
    return number if kind == "device" and isinstance(number, int) else math.inf


def _put_right(document: dict[str, Any], fault: Fault) -> dict[str, Any]:
    """The document without the fault, so that no other one follows from it."""
    kind, number, key, *_ = (*fault.at, None, None, None)
    if kind == "device" and isinstance(number, int):
        devices = list(document["device"])
        devices[number] = _device_put_right(devices[number], key, fault.meant or key)
        return document | {"device": devices}
    right = {name: value for name, value in document.items() if name != kind}
    if len(fault.at) == 1 and fault.meant:
        right[fault.meant] = document[str(kind)]
    return right


def _device_put_right(
    device: Any, key: int | str | None, wrong: int | str | None
) -> dict[str, Any]:
    """A device without that key, which is the `wrong` one or its misspelling; None is the whole."""
    if not isinstance(device, dict):
        return {"name": "any", **_ANY_LINE}
    right = {name: value for name, value in device.items() if name != key}
    if wrong in (None, "curve", *_ANY_LINE):
        right.pop("curve", None)
        right |= _ANY_LINE
    if wrong in ("name", "host"):
        right |= {str(wrong): "any"}
    return right


def _faults_text(path: Path, all_found: Sequence[Fault]) -> str:
    """A line for each fault below the file's name; one alone stands beside it."""
    faults = []
    for _, place, text, _ in all_found:
        fault = _counted_from_1(f"{place}{text}" if place else text.lstrip(": ."))
        faults.append(fault)
    if len(faults) == 1:
        return f"{path}: {faults[0]}"
    lines = [f"{path} has {len(faults)} errors:", *faults[:_MOST_FAULTS]]
    if len(faults) > _MOST_FAULTS:
        lines.append(f"and {len(faults) - _MOST_FAULTS} more")
    return "\n    ".join(lines)


def _counted_from_1(fault: str) -> str:
    """The fault of a device by its place in the file: `device 2: beta_s: Field required`."""
    match = re.match(r"device\.(\d+)\.?", fault)
    if match is None:
        return fault
    # Of the device as a whole, it names no field.
    return f"device {int(match[1]) + 1}: {fault[match.end() :].lstrip(': ')}"


def _keys_at(place: tuple[int | str, ...]) -> Iterable[str]:
    """The keys that a profile may have there: at the top, in a device, or in [joint]."""
    if place[:1] == ("device",):
        return ProfileDevice.model_fields
    if place[:1] == ("joint",):
        return JointProfile.model_fields
    return Profile.model_fields


def simulated_devices(
    source: int | str | Path, hosts: Sequence[Host] = (), option: str = OPTION
) -> tuple[tuple[Device, ...], JointProfile]:
    """The devices of a profile, by file or name, or for a number N that many plain CPU devices.

    Plain ones have no pace and no limit. With `hosts`, N of them are on each; a profile says itself
    where its devices are. Errors call the source by that `option`.
    """
    # A script may pass anything
    is_kind = isinstance(source, int | str | Path) and not isinstance(source, bool)
    if not is_kind or source == "":
        raise UsageError(
            f"simulate={source!r} is neither a number of plain CPU devices nor a "
            "profile's file or name"
        )
    source = str(source)
    if source.isascii() and source.removeprefix("-").isdigit():
        if len(source) > 9 or not 1 <= int(source) <= _MOST_DEVICES:
            raise UsageError(
                f"{option}{clean(source, 40)}: give 1 to {_MOST_DEVICES} devices"
            )
        places: Sequence[Host | None] = hosts or [None]
        devices = [
            _plain(number, host) for host in places for number in range(int(source))
        ]
        return tuple(devices), JointProfile()
    path = Path(source)
    shipped = shipped_profiles().get(source)
    if shipped is not None and not path.exists():
        path = shipped
    profile = load_profile(path, option)
    return tuple(_on_their_hosts(profile.device)), profile.joint


def _plain(number: int, host: Host | None) -> Device:
    """The plain CPU device of that number on a host."""
    return Device(
        index=number,
        uuid=_uuid("CPU", host, number),
        name="CPU",
        memory_bytes=None,
        simulated=True,
        host=host,
    )


def _on_their_hosts(devices: Sequence[ProfileDevice]) -> Iterator[Device]:
    """The devices, each numbered on its own host."""
    counts = Counter[str | None]()
    for device in devices:
        number = counts[device.host]
        counts[device.host] += 1
        yield Device(
            index=number,
            uuid=_uuid("SIM", device.host, number),
            name=clean(device.name),
            memory_bytes=device.memory,
            simulated=True,
            host=device.host,
            profile=device.own,
        )


def _uuid(kind: str, host: Host | None, number: int) -> str:
    return f"{kind}-{number}" if host is None else f"{kind}-{host}-{number}"
