"""Other hosts, and the command prefix that reaches them: `ssh {host}`, `ip netns exec {host}`, Ray.

How hosts are reached is set once for the whole program, by `connect_hosts`, before it uses a
device. It is the only such value: each process, result and printed command needs it, and handing it
to all of them would take it through every request, worker group and renderer.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from gpubalance.errors import EnvironmentFault, UsageError
from gpubalance.programs import AGENT, OVER_RAY
from gpubalance.settings.device import Host
from gpubalance.text import clean

SSH = "ssh -o BatchMode=yes {host}"
# All of a command's processes on a host, and those of another one soon after, share one login.
_ONE_LOGIN = SSH.replace(
    "-o",
    "-o ControlMaster=auto -o ControlPersist=60 -o ControlPath=~/.ssh/gpubalance-%C -o",
    1,
)
RAY = "ray"
_HOST = "{host}"
_GPUS = "{gpus}"
# Ray itself waits for minutes if another program listens at the address
_RAY_ANSWERS_WITHIN_S = 60.0
_SHELL_SIGN = re.compile(r"[\s\"'`\\$&|;<>()*?\[\]{}!]")
_SAME = "install the same versions on all hosts of a run"
_NO_CLUSTER = (
    "`ray status` must show the cluster. `ray start --head` on one host starts one and "
    "prints how other hosts join"
)


@dataclass(frozen=True)
class Reach:
    """How other hosts are reached."""

    # None if all devices are on this host
    by: Literal["command", "ray"] | None = None
    # What runs a Python program on a host when they stand before it
    words: tuple[str, ...] = ()
    # The prefix as typed, and the options with which another command reaches the same hosts
    via: str = ""
    options: tuple[str, ...] = ()


_reach = Reach()


def connect_hosts(hosts: str | None, via: str | None) -> tuple[str, ...]:
    """Returns the hosts in `alpha,beta`, and from now on reaches them by the prefix `via`, or ssh.

    `ray`, or Ray's own `ray://…`, stands for the nodes of that cluster. Without hosts all devices
    are here. Raises UsageError for an invalid host name, and for a prefix that has no `{host}` or
    is no command line; EnvironmentFault if Ray is not installed, if there is no cluster, or if ssh
    can't start what is at gpubalance's path.
    """
    global _reach
    if hosts is None and via is not None:
        raise UsageError(
            "--via needs --hosts", remedy="name the hosts: --hosts alpha,beta"
        )
    names: tuple[str, ...] = ()
    reach = Reach()
    if hosts is not None and hosts.partition("://")[0] == RAY:
        names, reach = _over_ray(hosts, via)
    elif hosts is not None:
        names, reach = _by_command(hosts, via)
    _reach = reach
    return names


def _by_command(hosts: str, via: str | None) -> tuple[tuple[str, ...], Reach]:
    names = _names(hosts)
    typed = via or SSH
    usual = f"such as --via '{SSH}'"
    try:
        words = shlex.split(_usual_prefix() if typed == SSH else typed)
    except ValueError as error:
        raise UsageError(f"--via {via!r}: {error}", remedy=usual) from None
    if not any(_HOST in word for word in words):
        raise UsageError(f"--via {via!r} does not contain {_HOST}", remedy=usual)
    if any(Path(word).name == "ssh" for word in words):
        _refuse_paths_for_a_shell()
    options = ["--hosts", hosts]
    if via:
        options += ["--via", via]
    words.append(sys.executable)
    return names, Reach("command", tuple(words), typed, tuple(options))


def _usual_prefix() -> str:
    """What reaches a host by ssh: with one login for all processes there, if ssh can share one.

    It needs a socket in ~/.ssh, and fails where the path is too long or no file can be made. It
    makes the folder itself, but only to note a host's key.
    """
    try:
        folder = Path(pwd.getpwuid(os.getuid()).pw_dir, ".ssh")
        folder.mkdir(mode=0o700, exist_ok=True)
        # As long a name as that of ssh's own socket is at first
        path = folder / f"gpubalance-{os.getpid():057}"
        with socket.socket(socket.AF_UNIX) as tried:
            tried.bind(str(path))
        path.unlink()
    except (KeyError, OSError):  # KeyError: the user is in no passwd
        return SSH
    return _ONE_LOGIN


def _refuse_paths_for_a_shell() -> None:
    """Raises EnvironmentFault for a path of ours that the shell behind ssh would change.

    Quoting it for that shell would change it for a prefix without a shell, such as srun.
    """
    for path in (sys.executable, AGENT):
        sign = _SHELL_SIGN.search(path)
        if sign:
            raise EnvironmentFault(
                f"ssh can't start {clean(path)} on another host: the shell there takes "
                f"{sign[0]!r} for its own",
                remedy="install gpubalance on each host at a path without spaces and "
                "without the signs of a shell, the same as here",
            )


def _names(hosts: str) -> tuple[str, ...]:
    names = [name.strip() for name in hosts.split(",")]
    for name in names:
        try:
            TypeAdapter(Host).validate_python(name)
        except ValidationError:
            why = (
                f"--hosts {clean(hosts, 80)!r}: {clean(name, 80)!r} is not a valid "
                "host name"
            )
            raise UsageError(why, remedy="--hosts alpha,beta") from None
    return tuple(dict.fromkeys(names))


def _over_ray(cluster: str, via: str | None) -> tuple[tuple[str, ...], Reach]:
    if via is not None:
        raise UsageError(
            "--via cannot be combined with a Ray cluster: Ray reaches its hosts itself",
            remedy="leave --via out",
        )
    if importlib.util.find_spec(RAY) is None:
        remedy = "`pip install '.[ray]'` in gpubalance's checkout, on each host"
        raise EnvironmentFault(
            f"--hosts {cluster}: Ray is not installed", remedy=remedy
        )
    # `auto` knows RAY_ADDRESS and starts no cluster
    address = "auto" if cluster == RAY else cluster
    joins = (sys.executable, OVER_RAY, address)
    try:
        done = subprocess.run(  # noqa: S603  (our own)
            [*joins, "nodes"],
            check=False,
            capture_output=True,
            text=True,
            timeout=_RAY_ANSWERS_WITHIN_S,
        )
    except subprocess.TimeoutExpired:
        why = f"Ray did not answer within {_RAY_ANSWERS_WITHIN_S:g} s"
        raise EnvironmentFault(
            f"--hosts {cluster}: {why}", remedy=_NO_CLUSTER
        ) from None
    if done.returncode:
        why = clean(done.stderr.strip().rpartition("\n")[2], 200)
        raise EnvironmentFault(f"--hosts {cluster}: {why}", remedy=_NO_CLUSTER)
    words = (*joins, "on", _HOST, _GPUS)
    return tuple(json.loads(done.stdout)), Reach(
        "ray", words, options=("--hosts", cluster)
    )


def are_reached() -> bool:
    """Whether devices that name a host are on other machines."""
    return _reach.by is not None


def reached_by() -> Literal["command", "ray"] | None:
    """How other machines are reached: by a command prefix or Ray; None if all devices are here."""
    return _reach.by


def typed_for_hosts() -> tuple[str, ...]:
    """The options with which another command reaches the same hosts."""
    return _reach.options


def command_on(host: Host | None, program: str, gpus: int = 0) -> list[str] | None:
    """The command here that runs our Python file `program` on that host, at the same place.

    None if the devices are on this host. `gpus` is how many GPUs it uses, which Ray reserves. The
    words are not quoted, as only some prefixes have a shell read them: with ssh, none of our paths
    means anything to one (`_refuse_paths_for_a_shell`).
    """
    if host is None or not are_reached():
        return None
    words = [
        word.replace(_HOST, host).replace(_GPUS, str(gpus)) for word in _reach.words
    ]
    return [*words, program, host]


def unreachable(host: Host, how: str, remedy: str = "") -> EnvironmentFault:
    """The error for a host whose prefix failed; `how` says in which way."""
    if _reach.by == RAY:
        by_ray = (
            "`ray status` must show the node\ngpubalance and Ray are needed there, in the same "
            "versions as here"
        )
        return EnvironmentFault(
            f"{host} can't be reached: the process that Ray starts there {how}",
            remedy=by_ray,
        )
    typed = _reach.via.replace(_HOST, host)
    by_hand = (
        f"this must work when you type it: {typed} "
        f"{shlex.quote(sys.executable)} -m gpubalance --version\n"
        "install gpubalance on each host at the same path as here; --via sets another "
        "command"
    )
    return EnvironmentFault(
        f"{host} can't be reached: {typed} {how}", remedy=remedy or by_hand
    )


def check_installed(
    host: Host, there: Mapping[str, str | None], here: Mapping[str, str | None]
) -> None:
    """Raises EnvironmentFault if that host's versions differ from the ones here."""
    other = []
    for name, version in here.items():
        if there.get(name) != version:
            installed = there.get(name) or "is not installed"
            other.append(f"{name} {installed} (here {version or 'none'})")
    if other:
        raise EnvironmentFault(f"{host} has {', '.join(other)}", remedy=_SAME)


def other_gpubalance(host: Host) -> EnvironmentFault:
    """The error for a host whose answer is not in this version's form."""
    return EnvironmentFault(
        f"gpubalance's version on {host} differs from the one here", remedy=_SAME
    )
