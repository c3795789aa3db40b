"""Other hosts, and the command prefix that reaches them: `ssh {host}`, `ip netns exec {host}`, or Ray."""

from __future__ import annotations

import functools
import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from gpubalance._version import __version__
from gpubalance.devices import on_host
from gpubalance.errors import EnvironmentFault, UsageError
from gpubalance.settings.device import Host
from gpubalance.settings.record import Record
from gpubalance.system.versions import software
from gpubalance.text import clean

SSH = "ssh -o BatchMode=yes {host}"
RAY = "ray"
_HOST, _GPUS = "{host}", "{gpus}"
_RAY_ANSWERS_WITHIN_S = 60.0  # Ray itself waits for minutes if another program listens at the address
_NO_CLUSTER = "`ray status` must show the cluster: `ray start --head` on one host starts one, and says how others join"


class Installed(Record):
    """Versions that must be the same on all hosts of a run."""

    gpubalance: str
    python: str
    tensorflow: str | None
    keras: str | None

    @classmethod
    @functools.cache
    def here(cls) -> Installed:
        """The versions on this host."""
        found = software()
        python = ".".join(map(str, sys.version_info[:2]))
        return cls(gpubalance=__version__, python=python, tensorflow=found.tensorflow, keras=found.keras)

    def check(self, host: Host) -> None:
        """Raises EnvironmentFault if that host's versions, in this record, differ from the ones here."""
        here = Installed.here()
        other = [
            f"{name} {value or 'is not installed'} (here {getattr(here, name) or 'none'})"
            for name, value in self
            if value != getattr(here, name)
        ]
        if other:
            raise EnvironmentFault(
                f"{host} has {', '.join(other)}", remedy="install the same versions on all hosts of a run"
            )


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
    joins = own_program("gpubalance.devices.over_ray", address)
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


def command_on(host: Host | None, main: str, *words: str, gpus: int = 0) -> list[str] | None:
    """The command here that runs our module `main` with these words on that host.

    None if the devices are on this host. `gpus` is how many GPUs it uses, which Ray reserves. The other host has Python
    at the same place. No shell here sees the words, and a shell there finds nothing special in them.
    """
    if host is None or _Reach.via is None:
        return None
    program = on_host.command(main, words)
    if _Reach.by == RAY:
        return [*(str(gpus) if word == _GPUS else host if word == _HOST else word for word in _Reach.via), *program[1:]]
    return [*(word.replace(_HOST, host) for word in _Reach.via), *program]


def own_program(main: str, *words: str) -> list[str]:
    """The same command for this host. It drops the current folder from the path, which could hide a module."""
    code = f"import sys; sys.path[:] = filter(None, sys.path); from {main} import main; main()"
    return [sys.executable, "-c", code, *words]


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


def other_gpubalance(host: Host) -> EnvironmentFault:
    """The error for a host whose answer is not in this version's form."""
    return EnvironmentFault(f"{host} has another gpubalance", remedy="install the same version on all hosts of a run")
