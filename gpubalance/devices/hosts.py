"""Other hosts, and the command prefix that reaches them: `ssh {host}`, `ip netns exec {host}`, or Ray."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from gpubalance.errors import EnvironmentFault, UsageError
from gpubalance.settings.device import Host
from gpubalance.text import clean

SSH = "ssh -o BatchMode=yes {host}"
# All of a command's processes on a host, and those of another one soon after, share one login.
_ONE_LOGIN = ("-o", "ControlMaster=auto", "-o", "ControlPersist=60", "-o", "ControlPath=~/.ssh/gpubalance-%C")
RAY = "ray"
_HOST, _GPUS = "{host}", "{gpus}"
_RAY_ANSWERS_WITHIN_S = 60.0  # Ray itself waits for minutes if another program listens at the address
_NO_CLUSTER = "`ray status` must show the cluster: `ray start --head` on one host starts one, and says how others join"


class _Reach:
    """Set once for this program: the prefix, None if all devices are on this host; its kind; the options as typed."""

    via: tuple[str, ...] | None = None
    by: Literal["command", "ray"] | None = None
    typed: tuple[str, ...] = ()


def reach(hosts: str | None, via: str | None) -> tuple[str, ...]:
    """Returns the hosts in `alpha,beta`, and from now on reaches devices that name one by the prefix `via`, or ssh.

    `ray`, or Ray's own `ray://…`, stands for the nodes of that cluster. Without hosts all devices are here. Raises
    UsageError for an invalid host name, a host named twice, and a prefix that has no `{host}` or is no command;
    EnvironmentFault if Ray is not installed or there is no cluster.
    """
    if hosts is None:
        if via is not None:
            raise UsageError("--via needs --hosts", remedy="name the hosts: --hosts alpha,beta")
        _Reach.via, _Reach.by, _Reach.typed = None, None, ()
        return ()
    if hosts.partition("://")[0] == RAY:
        return _reach_ray(hosts, via)
    names = _names(hosts)
    _Reach.via, _Reach.by = _words(via or SSH), "command"
    _Reach.typed = ("--hosts", hosts, *(["--via", via] if via else []))
    return names


def _reach_ray(cluster: str, via: str | None) -> tuple[str, ...]:
    if via is not None:
        raise UsageError("--via and a Ray cluster: Ray reaches its hosts itself", remedy="leave --via out")
    if importlib.util.find_spec(RAY) is None:
        remedy = "`pip install '.[ray]'` in gpubalance's checkout, on each host"
        raise EnvironmentFault(f"--hosts {cluster}: Ray is not installed", remedy=remedy)
    address = "auto" if cluster == RAY else cluster  # auto knows RAY_ADDRESS and starts no cluster
    joins = [sys.executable, str(Path(__file__).with_name("over_ray.py")), address]
    try:
        asked = subprocess.run(  # noqa: S603  (our own)
            [*joins, "nodes"], check=False, capture_output=True, text=True, timeout=_RAY_ANSWERS_WITHIN_S
        )
    except subprocess.TimeoutExpired:
        how = f"Ray did not answer within {_RAY_ANSWERS_WITHIN_S:g} s"
        raise EnvironmentFault(f"--hosts {cluster}: {how}", remedy=_NO_CLUSTER) from None
    if asked.returncode:
        why = clean(asked.stderr.strip().rpartition("\n")[2], 200)
        raise EnvironmentFault(f"--hosts {cluster}: {why}", remedy=_NO_CLUSTER)
    _Reach.via, _Reach.by, _Reach.typed = (*joins, "on", _HOST, _GPUS), "ray", ("--hosts", cluster)
    return tuple(json.loads(asked.stdout))


def are_reached() -> bool:
    """Whether devices that name a host are on other machines."""
    return _Reach.via is not None


def reached_by() -> Literal["command", "ray"] | None:
    """How other machines are reached: by a command prefix or Ray; None if all devices are here."""
    return _Reach.by


def typed_for_hosts() -> tuple[str, ...]:
    """The options with which another command reaches the same hosts."""
    return _Reach.typed


def _words(via: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(via))
    except ValueError as error:
        raise UsageError(f"--via {via!r}: {error}", remedy=f"such as --via '{SSH}'") from None
    if not any(_HOST in word for word in words):
        raise UsageError(f"--via {via!r} has no {_HOST}", remedy=f"such as --via '{SSH}'")
    if shutil.which(words[0]) is None and _HOST not in words[0]:
        raise UsageError(f"--hosts: there is no command {words[0]} here", remedy="--via names one that reaches {host}")
    return words


def command_on(host: Host | None, program: str, gpus: int = 0) -> list[str] | None:
    """The command here that runs our Python file `program` on that host, which has it at the same place.

    None if the devices are on this host. `gpus` is how many GPUs it uses, which Ray reserves. None of the words means
    anything to a shell, so any number of shells may read them on the way, as ssh's does.
    """
    if host is None or _Reach.via is None:
        return None
    if _Reach.by == RAY:
        values = {_HOST: host, _GPUS: str(gpus)}
        return [*(values.get(word, word) for word in _Reach.via), program, host]
    first, *words = (word.replace(_HOST, host) for word in _Reach.via)
    return [first, *(_ONE_LOGIN if _Reach.via == _words(SSH) else ()), *words, sys.executable, program, host]


def _names(hosts: str) -> tuple[str, ...]:
    found = [name.strip() for name in hosts.split(",")]
    for name in found:
        try:
            TypeAdapter(Host).validate_python(name)
        except ValidationError:
            raise UsageError(
                f"--hosts {clean(hosts, 80)!r}: {clean(name, 80)!r} is no host's name", remedy="--hosts alpha,beta"
            ) from None
    if len(set(found)) < len(found):
        raise UsageError(f"--hosts {hosts} names a host twice", remedy="name each host once")
    if RAY in found:
        raise UsageError(f"--hosts {hosts}: ray is no host's name", remedy="--hosts ray is all nodes of a Ray cluster")
    return tuple(found)


def unreachable(host: Host, how: str, remedy: str = "") -> EnvironmentFault:
    """The error for a host whose prefix failed; `how` says in which way."""
    if reached_by() == RAY:
        by_ray = "`ray status` must show the node\ngpubalance and Ray are needed there, in the same versions as here"
        return EnvironmentFault(f"{host} can't be reached: the process that Ray starts there {how}", remedy=by_ray)
    typed = shlex.join(word.replace(_HOST, host) for word in _Reach.via or ())
    python = f"{typed} {sys.executable} -m gpubalance --version"
    by_hand = (
        f"this must answer when it is typed by hand: {python}\n"
        "gpubalance is needed on each host, at the same place as here; --via names another command"
    )
    return EnvironmentFault(f"{host} can't be reached: {typed} {how}", remedy=remedy or by_hand)


def check_installed(host: Host, there: Mapping[str, str | None], here: Mapping[str, str | None]) -> None:
    """Raises EnvironmentFault if that host's versions differ from the ones here."""
    other = [
        f"{name} {there.get(name) or 'is not installed'} (here {version or 'none'})"
        for name, version in here.items()
        if version != there.get(name)
    ]
    if other:
        raise EnvironmentFault(
            f"{host} has {', '.join(other)}", remedy="install the same versions on all hosts of a run"
        )


def other_gpubalance(host: Host) -> EnvironmentFault:
    """The error for a host whose answer is not in this version's form."""
    return EnvironmentFault(f"{host} has another gpubalance", remedy="install the same version on all hosts of a run")
