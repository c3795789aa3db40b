"""Takes out of a result whose machine it is from: `--redact`."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import socket
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from gpubalance.results.common import Warning_
from gpubalance.results.plan import Plan
from gpubalance.settings.record import Record

R = TypeVar("R", bound=Record)

# UUIDs as NVML writes them. A simulated device's (SIM-0, CPU-0) identifies nothing.
_UUID = re.compile(r"\b(?:MIG-)?(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]+)+(?:/\d+/\d+)?\b", re.IGNORECASE)
_REAL = re.compile(r"(GPU|MIG)-(?!redacted-)")
_BUS_ID = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)
_PID = re.compile(r"\bPID \d+\b")


def is_redacted(uuid: str) -> bool:
    """Whether a device's UUID was taken out of a result, so that nothing identifies the device."""
    return re.fullmatch(r"(?:GPU|MIG)-redacted-\d+", uuid) is not None


class Identity(NamedTuple):
    """Home folders, account names and host names, each the longest first, none empty."""

    homes: tuple[str, ...]
    users: tuple[str, ...]
    hosts: tuple[str, ...]


def identity() -> Identity:
    """The names that identify this machine and user. `root` and `localhost` identify nobody and are left out."""
    homes, users, hosts = set[str](), set[str](), set[str]()
    with contextlib.suppress(RuntimeError, OSError):  # an account without a home folder
        homes |= {os.fspath(Path.home()), os.fspath(Path.home().resolve())}
    with contextlib.suppress(KeyError):  # an account without a name, as in a container
        account = pwd.getpwuid(os.getuid())
        homes, users = homes | {account.pw_dir}, users | {account.pw_name}
    users |= {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")}
    hosts |= {socket.gethostname(), socket.gethostname().partition(".")[0], os.environ.get("HOSTNAME", "")}
    return Identity(
        _longest_first(homes - {"/"}), _longest_first(users - {"root"}), _longest_first(hosts - {"localhost"})
    )


def _longest_first(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names - {""}, key=lambda name: (-len(name), name)))


class Redaction:
    """Takes who made a result, and where, out of it and the texts about it, with the same pseudonyms in all of them.

    A device's UUID becomes `GPU-redacted-0`, numbered in order of appearance, its bus id `bus-redacted-0`. The home
    folder becomes `~`, the account's name `user`, the host's `host`, also within messages and paths. Processes lose
    name and PID. Words from a fixed choice stay, such as a result's kind.
    """

    def __init__(self, whose: Identity) -> None:
        self._pseudonyms: dict[str, str] = {}
        self._names = [
            *((_path(home), "~") for home in whose.homes),
            *((_word(host), "host") for host in whose.hosts),
            *((_word(user), "user") for user in whose.users),
        ]

    def record(self, record: R) -> R:
        """The redacted record. A plan also gets a warning that it can't be run as it is."""
        cleaned = self._record(record)
        if isinstance(cleaned, Plan) and any(is_redacted(device.uuid) for device in cleaned.devices):
            warnings = (*cleaned.warnings, _not_to_be_run())
            return cleaned.model_copy(update={"warnings": warnings})
        return cleaned

    def text(self, text: str) -> str:
        """The redacted text."""
        for known in sorted(self._pseudonyms, key=len, reverse=True):
            text = text.replace(known, self._pseudonyms[known])
        text = _UUID.sub(lambda match: self._device(match[0]), text)
        text = _BUS_ID.sub(lambda match: self._bus(match[0]), text)
        text = _PID.sub("PID redacted", text)
        for pattern, instead in self._names:
            text = pattern.sub(instead, text)
        return text

    def _record(self, record: R) -> R:
        values = {name: getattr(record, name) for name in type(record).model_fields}
        update = {name: self._field(record, name, value) for name, value in values.items()}
        return record.model_copy(update=update)

    def _field(self, record: Record, name: str, value: Any) -> Any:
        fields = type(record).model_fields
        if _is_fixed(fields[name].annotation):
            return value
        if isinstance(value, str) and name == "uuid":
            return self._device(value)
        if isinstance(value, str) and name == "bus_id":
            return self._bus(value)
        if "pid" in fields and name in ("pid", "name"):
            return None
        return self._value(value)

    def _value(self, value: Any) -> Any:
        if isinstance(value, Record):
            return self._record(value)
        if isinstance(value, list | tuple):
            return type(value)(self._value(item) for item in value)
        if isinstance(value, dict):
            return {key: self._value(item) for key, item in value.items()}
        return self.text(value) if isinstance(value, str) else value

    def _device(self, uuid: str) -> str:
        kind = _REAL.match(uuid)
        return self._pseudonym(uuid, f"{kind[1]}-redacted-") if kind else uuid

    def _bus(self, bus_id: str) -> str:
        return bus_id if bus_id.startswith("bus-redacted-") else self._pseudonym(bus_id, "bus-redacted-")

    def _pseudonym(self, known: str, kind: str) -> str:
        if known not in self._pseudonyms:
            number = sum(one.startswith(kind) for one in self._pseudonyms.values())
            self._pseudonyms[known] = f"{kind}{number}"
        return self._pseudonyms[known]


def _is_fixed(annotation: Any) -> bool:
    return get_origin(annotation) is Literal or any(map(_is_fixed, get_args(annotation)))


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])")


def _path(folder: str) -> re.Pattern[str]:
    """Matches the folder and its contents, but no other folder whose name begins the same."""
    return re.compile(rf"(?<![\w.~/-]){re.escape(folder)}(?![\w.-])")


def _not_to_be_run() -> Warning_:
    return Warning_(
        code="redacted",
        message="the devices' UUIDs were taken out, so this plan does not say which GPUs it is for: run --plan and "
        "load_plan refuse it",
        next="make it without --redact to use it, or name the GPUs and their batches: --gpus, --batches",
    )
