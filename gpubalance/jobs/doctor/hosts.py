"""`doctor` on several hosts: each checks itself, and what lies between them is checked."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from gpubalance.errors import EnvironmentFault, Interrupted, UsageError
from gpubalance.jobs.doctor.check import check, failed, ok
from gpubalance.jobs.events import Doing, Watch
from gpubalance.numbers.units import format_duration
from gpubalance.results.checkup import Check, Checkup, Checkups
from gpubalance.results.common import now
from gpubalance.settings.device import Host
from gpubalance.workers.hosts import Ways, ask, try_ways

# A healthy host takes a minute; a step that hangs has its deadline on the host
_WITHIN_S = 900.0
_CLOCK = "clock"
_CONNECTIONS = "connections"
_OFF_S = 5.0
_WHY_CLOCKS = (
    "times of files and logs mislead, and munge, which authenticates Slurm's jobs, "
    "refuses a difference of 5 minutes"
)


def doctor_of(
    hosts: Sequence[Host],
    words: Sequence[str],
    gpus: Sequence[str] | None,
    watch: Watch,
) -> Checkups:
    """What `gpubalance doctor` with these words finds on each host.

    Of `gpus`, `alpha:0` is GPU 0 of alpha; hosts without one are left out then. Faults, an
    unreachable host among them, are in the result. Raises UsageError for a device on none of the
    hosts.
    """
    options = _options(hosts, gpus)
    check = "check themselves" if len(options) > 1 else "checks itself"
    watch(Doing(f"{', '.join(options)} {check}"))
    commands = {
        host: ["doctor", "--json", *words, *own] for host, own in options.items()
    }
    try:
        answers = ask(commands, Checkup, _WITHIN_S)
        well = [host for host, answer in answers.items() if isinstance(answer, Checkup)]
        between = check_ways(well, watch) if well else {}
    except KeyboardInterrupt as interrupt:
        raise Interrupted.by(interrupt, remedy="nothing was checked yet") from None
    checkups = []
    for host, answer in answers.items():
        if isinstance(answer, EnvironmentFault):
            checks: tuple[Check, ...] = (failed("host", answer),)
            answer = Checkup(created=now(), host=host, devices=(), checks=checks)
        else:
            checks = (*answer.checks, *between.get(host, ()))
            answer = answer.model_copy(update={"checks": checks})
        checkups.append(answer)
    return Checkups(created=now(), hosts=tuple(checkups))


def _options(
    hosts: Sequence[Host], gpus: Sequence[str] | None
) -> dict[Host, list[str]]:
    """The option that names each host's own GPUs; all hosts without one if none are named."""
    if not gpus:
        return {host: [] for host in hosts}
    options: dict[Host, list[str]] = {}
    for name in gpus:
        host, _, number = name.rpartition(":")
        if host not in hosts:
            raise UsageError(
                f"there is no device {name!r} on {', '.join(hosts)}",
                remedy=f"such as {hosts[0]}:0",
            )
        options.setdefault(host, ["--gpus"]).append(number)
    return options


def check_ways(hosts: Sequence[Host], watch: Watch) -> Mapping[Host, Iterable[Check]]:
    """The checks of each host beside the others, which answered a moment ago. Raises nothing."""
    watch(Doing(f"{', '.join(hosts)} connect to each other"))
    began_s = time.time()
    try:
        found = try_ways(hosts)
    except EnvironmentFault as error:
        return {hosts[0]: [failed(_CONNECTIONS, error)]}
    ended_s = time.time()
    checks: dict[Host, list[Check]] = {}
    ways = [own for own in found.values() if isinstance(own, Ways)]
    for host, own in found.items():
        if isinstance(own, EnvironmentFault):
            checks[host] = [failed(_CONNECTIONS, own)]
            continue
        checks[host] = [_clock(own.clock_s, began_s, ended_s)]
        others = [other for other in ways if other is not own]
        if others:
            checks[host].append(_connections(own, others))
    return checks


def _clock(there_s: float, began_s: float, ended_s: float) -> Check:
    """The check of a clock that was read between two looks at the one here."""
    behind_s = began_s - there_s
    ahead_s = there_s - ended_s
    off_s = max(behind_s, ahead_s)
    if off_s <= _OFF_S:
        return ok(_CLOCK, "within some seconds of the clock here")
    where = "behind" if behind_s > ahead_s else "ahead of"
    detail = f"at least {format_duration(off_s)} {where} the clock here: {_WHY_CLOCKS}"
    return check(
        _CLOCK, "warning", detail, "on that host: `sudo timedatectl set-ntp true`"
    )


def _connections(own: Ways, others: Sequence[Ways]) -> Check:
    """The check of the others' connections to a port of this host, as TensorFlow takes one."""
    address, _, port = own.address.rpartition(":")
    cut_off = [other for other in others if own.address in other.unreached]
    if not cut_off:
        names = ", ".join(other.host for other in others)
        return ok(_CONNECTIONS, f"{names} reached port {port} of {address}")
    problems = [f"{other.host}: {other.unreached[own.address]}" for other in cut_off]
    detail = f"port {port} of {address} cannot be reached from {', '.join(problems)}"
    allowed = [
        f"`sudo ufw allow from {other.address.rpartition(':')[0]}`" for other in cut_off
    ]
    remedy = (
        f"open {own.host}'s firewall on all ports, because TensorFlow picks a free "
        f"one: {', '.join(allowed)}\n"
        f"if {address} is in the wrong network, correct it in /etc/hosts on {own.host}"
    )
    return check(_CONNECTIONS, "failure", detail, remedy)
