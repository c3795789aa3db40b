"""Checks of what lies between hosts: their clocks, and whether their workers reach each other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from gpubalance.errors import EnvironmentFault
from gpubalance.jobs.doctor.check import check, failed, ok
from gpubalance.jobs.events import Doing, Watch
from gpubalance.numbers.units import format_duration
from gpubalance.results.checkup import Check
from gpubalance.settings.device import Host
from gpubalance.workers.hosts import Ways, try_ways

_CLOCK = "clock"
_CONNECTIONS = "connections"
_OFF_S = 5.0
_WHY_CLOCKS = "times of files and logs mislead, and Slurm's munge refuses 5 minutes"


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
        return ok(_CLOCK, "as here, to some seconds")
    where = "behind" if behind_s > ahead_s else "ahead of"
    detail = f"at least {format_duration(off_s)} {where} the one here: {_WHY_CLOCKS}"
    return check(_CLOCK, "warning", detail, "there: `sudo timedatectl set-ntp true`")


def _connections(own: Ways, others: Sequence[Ways]) -> Check:
    """The check of the others' connections to a port of this host, as TensorFlow takes one."""
    address, _, port = own.address.rpartition(":")
    cut_off = [other for other in others if own.address in other.unreached]
    if not cut_off:
        names = ", ".join(other.host for other in others)
        return ok(_CONNECTIONS, f"{names} reached port {port} of {address}")
    problems = [f"{other.host}: {other.unreached[own.address]}" for other in cut_off]
    detail = f"port {port} of {address} is not reached from {', '.join(problems)}"
    allowed = [
        f"`sudo ufw allow from {other.address.rpartition(':')[0]}`" for other in cut_off
    ]
    remedy = (
        f"open {own.host}'s firewall, on any port, as TensorFlow takes a free one: "
        f"{', '.join(allowed)}\n"
        f"if {address} is the wrong network: {own.host}'s own /etc/hosts has its address"
    )
    return check(_CONNECTIONS, "failure", detail, remedy)
